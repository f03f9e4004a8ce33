package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

func TestTurnIsShownOnlyWhileItIsOpen(t *testing.T) {
	t.Parallel()
	m := store.Message{ID: "m_1", Session: "ses_1", Turn: "t1", Seq: 5, Rev: 7}
	if got := Message(m).GetTurnId(); got != "t1" {
		t.Errorf("held message names turn %q, want t1", got)
	}
	m.Pos = 9
	if got := Message(m).GetTurnId(); got != "" {
		t.Errorf("settled message names turn %q, want none", got)
	}
}

func TestBlocksRoundTrip(t *testing.T) {
	t.Parallel()
	want := []store.Block{store.Text("grüße, "), store.Mention("ada-2"), store.Text("")}
	got, err := FromBlocks(Blocks(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFromBlocksRefuses(t *testing.T) {
	t.Parallel()
	text := func(s string) *compassv1.Block {
		return &compassv1.Block{Content: &compassv1.Block_Text{Text: s}}
	}
	mention := func(s string) *compassv1.Block {
		return &compassv1.Block{Content: &compassv1.Block_Mention{Mention: s}}
	}
	for name, blocks := range map[string][]*compassv1.Block{
		"nothing":          nil,
		"too many":         make([]*compassv1.Block, MaxBlocks+1),
		"empty block":      {{}},
		"nil block":        {nil},
		"zero character":   {text("a\x00b")},
		"not UTF-8":        {text("a\xffb")},
		"empty mention":    {mention("")},
		"mention with @":   {mention("@ada")},
		"mention upper":    {mention("Ada")},
		"mention too long": {mention(strings.Repeat("a", maxHandle+1))},
	} {
		if _, err := FromBlocks(blocks); !errors.Is(err, ErrShape) {
			t.Errorf("%s: got %v, want ErrShape", name, err)
		}
	}
}

func TestNamesThatClientsChoose(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check func(string) error
		good  []string
		bad   []string
	}{
		"client id":    {ClientID, []string{"1", "a b", strings.Repeat("ü", 128)}, []string{"", "a\nb", strings.Repeat("x", 129), "\xff"}},
		"channel name": {ChannelName, []string{"general", "Ops 24/7"}, []string{"", "a\tb", strings.Repeat("x", 129)}},
		"display name": {DisplayName, []string{"", "Ada L."}, []string{"a\x00"}},
		"handle":       {Handle, []string{"a", "ada-2"}, []string{"", "-a", "a-", "A", "a_b", "ada.l"}},
	} {
		for _, s := range c.good {
			if err := c.check(s); err != nil {
				t.Errorf("%s %q: %v", name, s, err)
			}
		}
		for _, s := range c.bad {
			if err := c.check(s); !errors.Is(err, ErrShape) {
				t.Errorf("%s %q: got %v, want ErrShape", name, s, err)
			}
		}
	}
}

func TestAccountEnumsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []store.Account{
		{Kind: store.KindPerson, Role: store.RoleAdmin, Wake: store.WakeManual},
		{Kind: store.KindAgent, Role: store.RoleMember, Wake: store.WakeOnOwed},
	} {
		a := Account(want)
		kind, kindErr := FromAccountKind(a.GetKind())
		role, roleErr := FromRole(a.GetRole())
		wake, wakeErr := FromWake(a.GetWake())
		if err := errors.Join(kindErr, roleErr, wakeErr); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, store.Account{Kind: kind, Role: role, Wake: wake}); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := FromAccountKind(compassv1.AccountKind_ACCOUNT_KIND_UNSPECIFIED); !errors.Is(err, ErrShape) {
		t.Errorf("an account of no kind: got %v, want ErrShape", err)
	}
}
