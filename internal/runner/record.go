package runner

import (
	"context"
	"encoding/json"
	"errors"
	"os"
)

// Taken is one line of the file of the agent record: one consequence at a session.
type Taken struct {
	Session    string `json:"session"`
	Generation int64  `json:"generation"`
	Agent      string `json:"agent"` // handle
	Channel    string `json:"channel,omitempty"`
	Message    string `json:"message,omitempty"` // empty for a steer by hand
	Pos        int64  `json:"pos,omitempty"`
	Steer      bool   `json:"steer,omitempty"`
	Text       string `json:"text"`
}

// recorder is the agent whose only consequence is a line in the file of this name. The line is on disk before the item is
// done, so that a killed process leaves behind exactly what it consumed.
type recorder string

func (r recorder) run(ctx context.Context, s *Session) (err error) {
	file, err := os.OpenFile(string(r), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return each(ctx, s, func(item Item) error {
		line := Taken{Session: s.ID, Generation: s.generation, Agent: s.AgentHandle, Steer: item.Steer, Text: item.Text}
		if m := item.Message; m != nil {
			line.Channel, line.Message, line.Pos, line.Text = m.GetChannelId(), m.GetId(), m.GetPos(), plain(m)
		}
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		if _, err := file.Write(append(text, '\n')); err != nil { // in one piece: sessions share the file
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		s.Done(item)
		return nil
	})
}
