package command

import (
	"encoding/json"
	"fmt"
)

// kind is one row of the table of commands. Number and name are for ever; the version counts changes of the payload that
// an older release would misread (added fields are none).
type kind struct {
	number  uint16
	version uint16
	name    string
	decode  func(payload []byte) (Command, error)
}

func kindOf[C Command](number, version uint16) kind {
	var zero C
	return kind{number, version, zero.Kind(), func(payload []byte) (Command, error) {
		var c C
		err := json.Unmarshal(payload, &c)
		return c, err
	}}
}

var kinds = []kind{
	kindOf[ClusterInit](1, 1),
	kindOf[NodePut](2, 1),
	kindOf[NodeRemove](3, 1),
	kindOf[ModelDeploy](4, 1),
	kindOf[ModelUpdate](5, 1),
	kindOf[ModelRestart](6, 1),
	kindOf[ModelDelete](7, 1),
	kindOf[ModelRemove](8, 1),
	kindOf[ReplicaPlace](9, 1),
	kindOf[ReplicaPut](10, 1),
	kindOf[ReplicaRemove](11, 1),
	kindOf[ReservationPut](12, 1),
	kindOf[ReservationRemove](13, 1),
	kindOf[KeyCreate](14, 1),
	kindOf[KeyRevoke](15, 1),
	kindOf[KeyRotate](16, 1),
	kindOf[TokenCreate](17, 1),
	kindOf[TokenRevoke](18, 1),
	kindOf[SecretPut](19, 1),
	kindOf[SecretRemove](20, 1),
	kindOf[WeightsPut](21, 1),
	kindOf[WeightsRemove](22, 1),
	kindOf[SettingsPut](23, 1),
	kindOf[ResidencyPut](24, 1),
	kindOf[JobFinish](25, 1),
	kindOf[UsageRecord](26, 1),
	kindOf[CertificatePut](27, 1),
	kindOf[PolicyPut](28, 1),
	kindOf[PolicyRemove](29, 1),
	kindOf[UsagePrune](30, 1),
}

var byNumber, byName = func() (map[uint16]kind, map[string]kind) {
	numbers, names := map[uint16]kind{}, map[string]kind{}
	for _, k := range kinds {
		if _, twice := numbers[k.number]; twice {
			panic(fmt.Sprintf("two commands have the number %d", k.number))
		}
		if _, twice := names[k.name]; twice {
			panic("two commands have the name " + k.name)
		}
		numbers[k.number], names[k.name] = k, k
	}
	return numbers, names
}()

// UnknownError is a command that this release does not know. Passing over it would make this server's state differ from
// the others', so whoever meets it stops.
type UnknownError struct {
	Number, Version uint16
	Proposer        string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("the log holds a command of type %d version %d, proposed by the server %s, which this release does not know: install the newer release that wrote it",
		e.Number, e.Version, e.Proposer)
}

// Kinds lists the names of all commands.
func Kinds() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return out
}
