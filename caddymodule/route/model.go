package route

import (
	"slices"
	"sync"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
)

// Model is what the gateway knows of one model. It never changes once it is in a Table.
type Model struct {
	Name     string
	Engine   string
	Names    []string // served names, its own first
	Domain   string
	Paths    *Paths           // what its engine serves
	Body     engine.BodyTable // which body fields its engine reads
	Fields   *openai.Fields   // those that Body names, with their rules, and those that the gateway reads itself
	Repairs  engine.Repairs   // what is mended in its answers
	Targets  []wire.RouteTarget
	Serving  bool
	Asleep   bool
	Reason   string
	Limits   wire.Limits
	Slots    int64 // requests at a time: the limit, or fewer where the engine works on fewer; 0 or less: no bound
	Context  int64 // tokens that a request may use; 0: not known
	Created  int64 // Unix seconds
	wireForm wire.Route
}

// Wire is the route as the control plane sent it.
func (m *Model) Wire() wire.Route { return m.wireForm }

// Serves tells whether clients may call the model by that name.
func (m *Model) Serves(name string) bool { return slices.Contains(m.Names, name) }

func newModel(r wire.Route) (*Model, error) {
	e, err := engine.Get(r.Engine)
	if err != nil {
		return nil, err
	}
	body := e.Body()
	m := &Model{Name: r.Model, Engine: r.Engine, Names: r.Names, Domain: r.Domain, Paths: pathsOf(e), Body: body,
		Fields: fieldsOf(r.Engine, body, r.Limits.UnknownFields), Repairs: e.Repairs(), Targets: r.Targets,
		Serving: r.Serving, Asleep: r.Asleep, Reason: r.Reason, Limits: r.Limits, Context: r.Context, Created: r.CreatedAt.Unix(), wireForm: r}
	m.Slots = r.Limits.MaxInflight
	if at := r.Parallel * max(int64(len(r.Targets)), 1); at > 0 && (m.Slots <= 0 || at < m.Slots) {
		m.Slots = at
	}
	if len(m.Names) == 0 {
		m.Names = []string{r.Model}
	}
	return m, nil
}

// tables are the sets of fields that there are: one for each engine and answer to unknown fields, however many models.
var tables sync.Map

type tableOf struct {
	engine string
	strict bool
}

func fieldsOf(name string, body engine.BodyTable, setting string) *openai.Fields {
	if setting == "" {
		setting = body.Unknown
	}
	at := tableOf{name, setting == engine.Deny}
	if f, ok := tables.Load(at); ok {
		return f.(*openai.Fields)
	}
	f, _ := tables.LoadOrStore(at, openai.NewTable(body, at.strict))
	return f.(*openai.Fields)
}

// Order is the places to try, best first: the targets that serve, one of them put first by its share of the weights
// (random is in 0 ≤ random < 1), then those of weight 0, which are only stood in for others.
func (m *Model) Order(random float64) []wire.RouteTarget {
	if len(m.Targets) == 1 {
		return m.Targets
	}
	var out, spare []wire.RouteTarget
	total := 0
	for _, t := range m.Targets {
		switch {
		case !t.Serving:
		case t.Weight > 0:
			out = append(out, t)
			total += t.Weight
		default:
			spare = append(spare, t)
		}
	}
	at := int(random * float64(total))
	for i, t := range out {
		if at -= t.Weight; at < 0 {
			first := out[i]
			copy(out[1:i+1], out[:i])
			out[0] = first
			break
		}
	}
	return append(out, spare...)
}
