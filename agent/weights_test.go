package agent

import (
	"os"
	"testing"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// TestWeightsOrder: weights that nothing uses are deleted when the server says so, and the next report says that there are
// none; what is assigned, or no name at all, is left alone whatever the server says.
func TestWeightsOrder(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		for i, name := range []string{"chat", ".blobs", "../chat", "", "chat/.."} {
			n.server.OrderWeights(wire.WeightsOrder{ID: string(rune('a' + i)), Name: name})
		}
		n.hold("the weights are there", 30*time.Second, func() bool { return n.exists(n.paths.set("chat")) })
		n.server.Withdraw("chat")
		n.until("it is gone from the report", time.Minute, func() bool { return n.status("chat") == nil })
		n.server.OrderWeights(wire.WeightsOrder{ID: "z", Name: "chat"})
		n.until("the report says that there are none", time.Minute, func() bool {
			reports := n.server.Reports()
			last := reports[len(reports)-1].Weights
			return last != nil && len(last) == 0
		})
		blobs, err := os.ReadDir(n.paths.Weights + "/.blobs")
		if n.exists(n.paths.set("chat")) || err != nil || len(blobs) != 0 {
			t.Errorf("left: %v, %v", blobs, err)
		}
	})
}
