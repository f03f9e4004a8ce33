package store

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBlocksRoundTripAsTheColumnHasThem(t *testing.T) {
	t.Parallel()
	blocks := []Block{Text("hello "), Mention("ada"), Text("")}
	data, err := json.Marshal(blocks)
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"text":"hello "},{"mention":"ada"},{"text":""}]`; string(data) != want {
		t.Errorf("column holds %s, want %s", data, want)
	}
	var back []Block
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(blocks, back); diff != "" {
		t.Error(diff)
	}
}

func TestBlockRefusesWhatIsNeitherOrBoth(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{`{}`, `{"text":"a","mention":"b"}`, `"a"`, `{"text":1}`} {
		var b Block
		if err := json.Unmarshal([]byte(bad), &b); err == nil {
			t.Errorf("%s was read as %+v", bad, b)
		}
	}
	if _, err := json.Marshal(Block{Text: "untyped"}); err == nil {
		t.Error("a block without a type was written")
	}
}

func TestMentionsAreNamedOnceInOrder(t *testing.T) {
	t.Parallel()
	got := Mentions([]Block{Mention("b"), Text("b"), Mention("a"), Mention("b")})
	if diff := cmp.Diff([]string{"b", "a"}, got); diff != "" {
		t.Error(diff)
	}
	if Mentions(nil) == nil {
		t.Error("no mentions must be an empty array, not NULL: the column is NOT NULL")
	}
}
