package controlplane

import (
	"context"
	"fmt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/raftstore/command"
)

// authorityPath is where the authority's certificate and key lie in the store, sealed.
const authorityPath = "cluster/authority"

// keeper keeps the authority among the cluster's sealed secrets, so that it is in no file in clear, goes with a backup, and
// comes back with it.
type keeper struct {
	ctx    context.Context
	store  Store
	reader *stored.Reader
	sealer *seal.Sealer
	by     command.By
}

func (k *keeper) Load() ([]byte, bool, error) {
	d, err := k.reader.Read()
	if err != nil {
		return nil, false, err
	}
	secret, there := d.Secrets[authorityPath]
	if !there {
		return nil, false, nil
	}
	bundle, err := k.sealer.Open(secret)
	return bundle, true, err
}

func (k *keeper) Store(bundle []byte) error {
	d, err := k.reader.Read()
	if err != nil {
		return err
	}
	secret, err := k.sealer.Seal(seal.CheckNamespace, authorityPath, d.Secrets[authorityPath], bundle)
	if err != nil {
		return err
	}
	if _, err := k.store.Propose(k.ctx, k.by, command.SecretPut{Secret: secret}); err != nil {
		return fmt.Errorf("store it: %w", err)
	}
	return nil
}

// byServer says that the server itself does something, and on which occasion.
func byServer(store Store, occasion string) command.By {
	return command.By{Principal: levelrail.Principal{Kind: "server", ID: store.Status().ServerID, Name: occasion}, Ability: levelrail.AbilityRoot}
}
