package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// Migration is one file NNNN_name.sql.
type Migration struct {
	Version int
	Name    string // the file's name
	SQL     string // as written, placeholders and all
	Sum     string // SHA-256 of SQL in hex
	// Serves is the oldest schema version that a binary must know to go on working once this file is applied. An expand
	// migration states it (a line `-- compass:serves NNNN`), so that older processes stay up; without the line it is the
	// file's own version, and older processes are refused.
	Serves int
}

var (
	fileName    = regexp.MustCompile(`^(\d{4})_[a-z0-9_]+\.sql$`)
	servesLine  = regexp.MustCompile(`(?m)^-- compass:serves (\d{4})$`)
	placeholder = regexp.MustCompile(`\$\{[^}]*\}`)
)

// Load reads the migrations of a folder in the order of their numbers. A number may be left out, none may occur twice.
// Files may not control transactions: each of them is one.
func Load(files fs.FS) ([]Migration, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	var out []Migration
	for _, name := range names {
		m, err := load(files, name)
		if err != nil {
			return nil, fmt.Errorf("load migration %s: %w", name, err)
		}
		if len(out) > 0 && out[len(out)-1].Version == m.Version {
			return nil, fmt.Errorf("load migration %s: %s has the same number", name, out[len(out)-1].Name)
		}
		out = append(out, m)
	}
	return out, nil
}

func load(files fs.FS, name string) (Migration, error) {
	match := fileName.FindStringSubmatch(name)
	if match == nil {
		return Migration{}, errors.New("the name must be NNNN_name.sql, in lower case")
	}
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return Migration{}, err
	}
	sum := sha256.Sum256(text)
	m := Migration{Name: name, SQL: string(text), Sum: hex.EncodeToString(sum[:])}
	if m.Version, err = strconv.Atoi(match[1]); err != nil {
		return Migration{}, err
	}
	m.Serves = m.Version
	if line := servesLine.FindStringSubmatch(m.SQL); line != nil {
		if m.Serves, err = strconv.Atoi(line[1]); err != nil {
			return Migration{}, err
		}
	}
	if m.Serves > m.Version {
		return Migration{}, fmt.Errorf("compass:serves %04d is newer than the file itself", m.Serves)
	}
	if _, err := m.render(naming.Roles{}); err != nil {
		return Migration{}, err
	}
	return m, refuseControl(m.SQL)
}

// refuseControl keeps a file from ending the transaction it runs in.
func refuseControl(sql string) error {
	for _, s := range statements(sql) {
		word := strings.ToLower(s.text[:strings.IndexFunc(s.text+";", func(r rune) bool { return !unicode.IsLetter(r) })])
		switch word {
		case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release":
			return fmt.Errorf("line %d: %s: a file is one transaction and may not control it", s.line, word)
		}
	}
	return nil
}

// render puts the quoted role names in place of the placeholders.
func (m Migration) render(roles naming.Roles) (string, error) {
	known := map[string]string{
		"${owner}": roles.Owner, "${app}": roles.App, "${system}": roles.System,
		"${provision}": roles.Provision, "${tenant}": roles.Tenant,
	}
	var unknown []string
	out := placeholder.ReplaceAllStringFunc(m.SQL, func(p string) string {
		role, ok := known[p]
		if !ok {
			unknown = append(unknown, p)
		}
		return pg.Ident(role)
	})
	if unknown != nil {
		slices.Sort(unknown)
		return "", fmt.Errorf("unknown placeholder %s", strings.Join(slices.Compact(unknown), ", "))
	}
	return out, nil
}
