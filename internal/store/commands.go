package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// sqlAddCommand runs under the binding's row lock: a number above the one before, which it names (CmdChain), by the
	// clock, so that a failover which forgets the newest command does not give its number to another one.
	sqlAddCommand = `
with numbered as (
    update compass.session_bindings b set last_command = greatest(b.last_command + 1, compass.number())
     where b.session_id = $1 and b.live
    returning b.tenant_id, b.session_id, b.last_command
)
insert into compass.session_commands (tenant_id, session_id, n, prev, kind, text)
select n.tenant_id, n.session_id, n.last_command, $2, $3, $4 from numbered n
returning n`

	sqlHosted = `select from compass.session_bindings b where b.session_id = $1 and b.runner_id = $2 and b.live`

	sqlFetchCommands = `
select c.n, c.prev, c.kind, c.text, coalesce(c.message_id, ''), coalesce(c.pos, 0) from compass.session_commands c
 where c.session_id = $1 and c.n > $2
 order by c.n limit $3`

	sqlFetchMessages = `
select` + sqlMessageColumns + `
  from compass.session_commands c join compass.messages m on m.tenant_id = c.tenant_id and m.id = c.message_id
 where c.session_id = $1 and c.n > $2
 order by c.n limit $3`

	// The row of the command goes, and what backed it is done, if it is still the delivery that was acknowledged (AckPos).
	// The cursor does not move: what is before it in the chain may be undelivered (SteerAck). The ack of a replay ends its
	// dead letter, not the replay itself.
	sqlAckCommand = `
with mine as materialized (
    select b.agent_account_id from compass.session_bindings b
     where b.session_id = $1 and b.generation = $2 and b.runner_id = $3 and b.live for no key update
), gone as (
    delete from compass.session_commands c using mine where c.session_id = $1 and c.n = $4
), done as (
    update compass.owed_mentions o set done = true from mine
     where o.agent_id = mine.agent_account_id and o.message_id = $5 and o.pos = $6 and not o.done
    returning o.tenant_id, o.agent_id, o.message_id, o.kind
), replayed as (
    delete from compass.dead_letters d using done
     where d.tenant_id = done.tenant_id and d.recipient_id = done.agent_id and d.message_id = done.message_id
       and done.kind = 'replay'
)
select mine.agent_account_id, exists (select from done) from mine`
)

// MaxFetch is how many commands one fetch returns; whoever gets so many asks again.
const MaxFetch = 200

// Steer adds text by hand to the session's commands, after everything added before it, by whichever Server (REQ-139,
// REQ-234). It waits for the Runner to apply and acknowledge it. ErrNotFound: no such session. ErrPrecondition: it is over.
func (s *Store) Steer(ctx context.Context, session, text string) (SessionCommand, Binding, error) {
	command := SessionCommand{Kind: CommandSteer, Text: text}
	var binding Binding
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if binding, err = lockBinding(ctx, tx, session); err != nil {
			return err
		}
		if !binding.Live {
			return fmt.Errorf("%w: the session is over", ErrPrecondition)
		}
		command.Prev = binding.LastCommand
		return tx.QueryRow(ctx, sqlAddCommand, session, command.Prev, command.Kind, text).Scan(&command.N)
	})
	if err != nil {
		return SessionCommand{}, Binding{}, wrapf(err, "steer session %s", session)
	}
	return command, binding, nil
}

// Fetch asks for the commands of a session after a number.
type Fetch struct {
	Session string
	Runner  string // must host it
	After   int64
}

// FetchCommands lists commands in order, at most MaxFetch: what is listed is all there is up to the last of it, so the
// Runner may apply them whatever their prev. ErrStale where the session is not current or another Runner's; a session is
// of one generation, so its id is enough.
func (s *Store) FetchCommands(ctx context.Context, f Fetch) ([]SessionCommand, error) {
	var commands []SessionCommand
	var messages []Message
	mine := false
	err := s.do(ctx, func(b *pgx.Batch) {
		queueExists(b, &mine, sqlHosted, f.Session, f.Runner)
		b.Queue(sqlFetchCommands, f.Session, f.After, MaxFetch).Query(func(rows pgx.Rows) (err error) {
			commands, err = pgx.CollectRows(rows, scanCommand)
			return err
		})
		b.Queue(sqlFetchMessages, f.Session, f.After, MaxFetch).Query(func(rows pgx.Rows) (err error) {
			messages, err = pgx.CollectRows(rows, scanMessage)
			return err
		})
	})
	if err == nil && !mine {
		err = ErrStale
	}
	if err != nil {
		return nil, wrapf(err, "fetch commands of session %s", f.Session)
	}
	return withContent(commands, messages), nil
}

// scanCommand reads a command without its content.
func scanCommand(row pgx.CollectableRow) (SessionCommand, error) {
	var c SessionCommand
	err := row.Scan(&c.N, &c.Prev, &c.Kind, &c.Text, &c.MessageID, &c.Pos)
	return c, err
}

// withContent gives each command the message that it names.
func withContent(commands []SessionCommand, messages []Message) []SessionCommand {
	byID := make(map[string]*Message, len(messages))
	for i := range messages {
		byID[messages[i].ID] = &messages[i]
	}
	for i := range commands {
		commands[i].Message = byID[commands[i].MessageID]
	}
	return commands
}

// AckCommands forgets commands that were consumed, in one round trip: acks of commands that are gone, or that name another
// message or position, change nothing. done is how many owed rows are settled by it. ErrStale where the session is not
// current.
func (s *Store) AckCommands(ctx context.Context, ref SessionRef, acks []CommandAck) (agent string, done int, err error) {
	err = s.do(ctx, func(b *pgx.Batch) {
		for _, a := range acks {
			b.Queue(sqlAckCommand, ref.Session, ref.Generation, ref.Runner, a.N, a.MessageID, a.Pos).QueryRow(func(row pgx.Row) error {
				var one bool
				if err := row.Scan(&agent, &one); err != nil {
					return err
				}
				if one {
					done++
				}
				return nil
			})
		}
	})
	if errors.Is(err, ErrNotFound) { // every statement asks for the binding
		err = ErrStale
	}
	return agent, done, wrapf(err, "acknowledge commands of session %s", ref.Session)
}
