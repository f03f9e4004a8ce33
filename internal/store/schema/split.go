package schema

import "strings"

// statement is a piece of a file, for messages and checks: what runs is always the whole file.
type statement struct {
	text string
	line int // where it begins, from 1
	end  int // offset behind it
}

// opening is its first line, comments left out, at most 80 bytes.
func (s statement) opening() string {
	line, _, _ := strings.Cut(s.text, "\n")
	if len(line) > 80 {
		line = line[:80] + "…"
	}
	return strings.TrimSpace(line)
}

// statements finds the semicolons that separate statements: not those in strings, quoted names, comments, dollar quotes
// and BEGIN ATOMIC bodies.
func statements(sql string) []statement {
	var out []statement
	sc := scanner{sql: sql, begin: -1}
	for sc.at < len(sql) {
		if sc.step() {
			out = sc.cut(out)
		}
	}
	return sc.cut(out)
}

type scanner struct {
	sql    string
	at     int
	begin  int    // where the statement's first word stands, -1 before it
	word   string // the last word
	atomic int    // how deep we are in BEGIN ATOMIC … END, CASE … END included
}

func (s *scanner) cut(out []statement) []statement {
	if s.begin >= 0 {
		end := min(s.at, len(s.sql))
		out = append(out, statement{text: s.sql[s.begin:end], line: 1 + strings.Count(s.sql[:s.begin], "\n"), end: end})
	}
	s.begin, s.word, s.atomic = -1, "", 0
	return out
}

// step passes one token and tells whether it ended a statement.
func (s *scanner) step() bool { //nolint:gocyclo // one case for each token of SQL
	rest := s.sql[s.at:]
	switch c := rest[0]; {
	case strings.HasPrefix(rest, "--"):
		s.pass(rest, "\n", 2)
		return false
	case strings.HasPrefix(rest, "/*"):
		s.passComment()
		return false
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		s.at++
		return false
	case c == ';' && s.atomic == 0:
		s.at++
		return true
	}
	if s.begin < 0 {
		s.begin = s.at
	}
	switch c := rest[0]; {
	case c == '\'':
		s.passString(strings.ToLower(s.word) == "e" && s.at > 0 && s.sql[s.at-1] != ' ')
	case c == '"':
		s.pass(rest, `"`, 1)
	case c == '$' && dollarTag(rest) != "":
		tag := dollarTag(rest)
		s.pass(rest, tag, len(tag))
	case isWord(c):
		s.passWord()
	default:
		s.at++
	}
	return false
}

// pass moves behind the next end, looked for from offset from.
func (s *scanner) pass(rest, end string, from int) {
	if i := strings.Index(rest[from:], end); i >= 0 {
		s.at += from + i + len(end)
		return
	}
	s.at = len(s.sql)
}

func (s *scanner) passComment() {
	depth := 0
	for s.at < len(s.sql) {
		switch rest := s.sql[s.at:]; {
		case strings.HasPrefix(rest, "/*"):
			depth++
			s.at += 2
		case strings.HasPrefix(rest, "*/"):
			depth--
			s.at += 2
		default:
			s.at++
		}
		if depth == 0 {
			return
		}
	}
}

func (s *scanner) passString(escapes bool) {
	s.at++
	for s.at < len(s.sql) {
		switch c := s.sql[s.at]; {
		case c == '\\' && escapes:
			s.at += 2
		case c == '\'':
			s.at++
			return // a doubled quote begins the next string at once, which is the same to us
		default:
			s.at++
		}
	}
}

func (s *scanner) passWord() {
	from := s.at
	for s.at < len(s.sql) && (isWord(s.sql[s.at]) || s.sql[s.at] == '$') {
		s.at++
	}
	word := strings.ToLower(s.sql[from:s.at])
	switch {
	case word == "atomic" && s.word == "begin":
		s.atomic = 1
	case word == "case" && s.atomic > 0:
		s.atomic++
	case word == "end" && s.atomic > 0:
		s.atomic--
	}
	s.word = word
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// dollarTag returns the opening $tag$ of rest, "" where there is none.
func dollarTag(rest string) string {
	for i := 1; i < len(rest); i++ {
		if rest[i] == '$' {
			return rest[:i+1]
		}
		if !isWord(rest[i]) || i == 1 && rest[i] >= '0' && rest[i] <= '9' {
			return ""
		}
	}
	return ""
}
