package edge

import (
	"fmt"

	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// role is who may call a procedure. The zero role is nobody: a procedure that is not listed is refused.
type role int

const (
	nobody   role = iota
	member        // any account of the tenant
	admins        // its admins
	platform      // admins of the bootstrap tenant
)

// roles says who may call what. Membership of channels is judged below it, by the store.
func roles() map[string]role {
	return map[string]role{
		compassv1connect.AccountServiceCreateAccountProcedure: admins,
		compassv1connect.AccountServiceListAccountsProcedure:  member,
		compassv1connect.AccountServiceSetRoleProcedure:       admins,
		compassv1connect.AccountServiceDeleteAccountProcedure: admins,
		compassv1connect.AccountServiceIssueTokenProcedure:    admins,
		compassv1connect.AccountServiceRevokeTokenProcedure:   admins,
		compassv1connect.AccountServiceWhoAmIProcedure:        member,

		compassv1connect.ChannelServiceCreateChannelProcedure:  member,
		compassv1connect.ChannelServiceListChannelsProcedure:   member,
		compassv1connect.ChannelServiceArchiveChannelProcedure: member,
		compassv1connect.ChannelServiceAddMemberProcedure:      member,
		compassv1connect.ChannelServiceRemoveMemberProcedure:   member,
		compassv1connect.ChannelServiceListMembersProcedure:    member,
		compassv1connect.ChannelServicePinMessageProcedure:     member,
		compassv1connect.ChannelServiceUnpinMessageProcedure:   member,

		compassv1connect.CommsServicePostMessageProcedure:    member,
		compassv1connect.CommsServiceUpdateMessageProcedure:  member,
		compassv1connect.CommsServiceAskQuestionProcedure:    member,
		compassv1connect.CommsServiceRespondToAskProcedure:   member,
		compassv1connect.CommsServiceListMessagesProcedure:   member,
		compassv1connect.CommsServiceSubscribeCommsProcedure: member,

		compassv1connect.SessionServiceStartSessionProcedure: admins,
		compassv1connect.SessionServiceStopSessionProcedure:  admins,
		compassv1connect.SessionServiceSteerProcedure:        admins,
		compassv1connect.SessionServiceListSessionsProcedure: admins,

		compassv1connect.AdminServiceCreateTenantProcedure:      platform,
		compassv1connect.AdminServiceIssueRunnerTokenProcedure:  platform,
		compassv1connect.AdminServiceListDeadLettersProcedure:   admins,
		compassv1connect.AdminServiceReplayDeadLettersProcedure: admins,
		compassv1connect.AdminServicePurgeDeadLettersProcedure:  admins,
		compassv1connect.AdminServiceListOwedProcedure:          admins,
		compassv1connect.AdminServiceListHeldProcedure:          admins,
		compassv1connect.AdminServiceGetStatusProcedure:         admins,
	}
}

// allow refuses a caller who lacks the role; wire.ErrDenied.
func allow(needed role, c store.Caller) error {
	switch {
	case needed == member,
		needed == admins && c.Admin(),
		needed == platform && c.Platform():
		return nil
	case needed == admins:
		return fmt.Errorf("%w: it needs the admin role", wire.ErrDenied)
	}
	return wire.ErrDenied
}
