// Package levelrail holds the words that Levelrail's rooms share: Model, Revision, Replica, Shard, Node, Device,
// Reservation, Weights, Key, Token, Usage, Job, Secret, Setting, Reason and the kinds of error. The same word stands in
// Go, JSON, flags, store buckets, log keys and the documentation.
//
// It owns shapes and the rules that belong to a shape alone (is this a valid name, does this key open this model). It
// uses the standard library only, reads no clock and touches no file, so every other package may import it. What crosses
// the wire as a request or an answer is declared in client/wire; what is remembered, and how, in raftstore.
package levelrail

import "time"

// Kind names one sort of stored object. It is the bucket's name in the store, the `kind` of a watch line and of an
// audit record.
type Kind string

// The kinds of object that the store keeps.
const (
	KindCluster     Kind = "cluster"     // one record: ids, name, created
	KindNode        Kind = "node"        // a machine with an agent
	KindModel       Kind = "model"       // what an operator deployed
	KindRevision    Kind = "revision"    // one immutable spec of a model, id MODEL/NUMBER
	KindReplica     Kind = "replica"     // one engine of a model, id is the unit's stem: chat, chat.1
	KindReservation Kind = "reservation" // GPUs and memory promised to an owner
	KindWeights     Kind = "weights"     // files a model runs from, outliving it
	KindKey         Kind = "key"         // an API key of the gateway (hash only)
	KindToken       Kind = "token"       // an API token of the control plane (hash only)
	KindSecret      Kind = "secret"      // a sealed value at a path
	KindSettings    Kind = "settings"    // a document of cluster settings, with history
	KindResidency   Kind = "residency"   // asleep, waking or awake, by model
	KindUsage       Kind = "usage"       // hourly sums, id HOUR/KEY/MODEL
	KindJob         Kind = "job"         // long work that outlives the command that began it
	KindAudit       Kind = "audit"       // who did what, one record a command
	KindCertificate Kind = "certificate" // what the cluster's authority has issued
	KindPolicy      Kind = "policy"      // access rules over objects and abilities
)

// Object is anything that the store keeps: it says its kind and its id within the kind.
type Object interface {
	ObjectKind() Kind
	ObjectID() string
}

// Owner says whose an object is. Both parts are "default" in this release; every object carries them so that
// organisations and projects can come without rewriting what is stored.
type Owner struct {
	Organisation string `json:"organisation"`
	Project      string `json:"project"`
}

// DefaultOwner owns everything in this release.
var DefaultOwner = Owner{Organisation: "default", Project: "default"}

// Stamp says when and by whom an object was made and last changed. Times are the proposer's clock in UTC.
type Stamp struct {
	CreatedAt time.Time `json:"created_at"`
	CreatedBy Principal `json:"created_by"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Cluster is the one record that says which cluster this store belongs to.
type Cluster struct {
	ID        string    `json:"id"`         // clu_ and 128 random bits, made at first start
	CreatedAt time.Time `json:"created_at"` // UTC
}

func (Cluster) ObjectKind() Kind   { return KindCluster }
func (c Cluster) ObjectID() string { return "cluster" }

// Job is long work (deploy, fetch, update) that lives on without the command that began it.
type Job struct {
	ID         string     `json:"id"`                    // job_…
	Action     string     `json:"action"`                // deploy, update, restart, delete
	Model      string     `json:"model,omitempty"`       // what it works on
	Revision   int        `json:"revision,omitempty"`    // which revision it brings
	State      JobState   `json:"state"`                 // running, done, failed
	Reason     Reason     `json:"reason,omitempty"`      // why it failed, when it did
	Message    string     `json:"message,omitempty"`     // one sentence for people
	Owner      Owner      `json:"owner"`                 //
	Stamp      Stamp      `json:"stamp"`                 //
	FinishedAt *time.Time `json:"finished_at,omitempty"` // absent while running
}

// JobState is where a job stands.
type JobState string

// The states of a job.
const (
	JobRunning JobState = "running"
	JobDone    JobState = "done"
	JobFailed  JobState = "failed"
)

func (Job) ObjectKind() Kind   { return KindJob }
func (j Job) ObjectID() string { return j.ID }

// Secret is a sealed value at a generic path, such as models/chat/hub-token or replicas/chat/engine-key. The value is
// ciphertext: sealing happens in the proposer, under a data key of the namespace that the master key wraps.
type Secret struct {
	Path      string `json:"path"`
	Namespace string `json:"namespace"`   // whose data key seals it
	KeyID     string `json:"key_id"`      // which master key wraps the data key
	Wrapped   []byte `json:"wrapped_key"` // the data key, wrapped
	Sealed    []byte `json:"sealed"`      // nonce and ciphertext (AES-256-GCM)
	Version   int    `json:"version"`     // counts rotations, part of the additional data
	Stamp     Stamp  `json:"stamp"`
}

func (Secret) ObjectKind() Kind   { return KindSecret }
func (s Secret) ObjectID() string { return s.Path }

// SecretRef is a typed reference to a secret: objects carry it instead of a value.
type SecretRef struct {
	Path string `json:"path"`
}

// SettingsDocument is one version of the cluster's settings. Every version is a record of its own, so history and
// rollback cost nothing.
type SettingsDocument struct {
	Name    string            `json:"name"`    // "cluster"
	Version int               `json:"version"` // 1, 2, 3…
	Values  map[string]string `json:"values"`  // APP_… name to its text
	Stamp   Stamp             `json:"stamp"`
}

func (SettingsDocument) ObjectKind() Kind   { return KindSettings }
func (d SettingsDocument) ObjectID() string { return d.Name }

// Audit is the record of one command: who, with which ability, did what to which object, and how it ended. It is
// written in the same transaction as the effect. It never holds a secret value.
type Audit struct {
	Index     uint64    `json:"index"` // the store's position of the command
	At        time.Time `json:"at"`    // the proposer's clock
	Principal Principal `json:"principal"`
	Ability   Ability   `json:"ability"`
	Command   string    `json:"command"` // the command's kind, such as model.deploy
	Kind      Kind      `json:"kind,omitempty"`
	ID        string    `json:"id,omitempty"`
	Refused   string    `json:"refused,omitempty"` // the kind of the refusal, absent when done
}

func (Audit) ObjectKind() Kind { return KindAudit }

// ObjectID is the index in twenty digits, so that records sort by age.
func (a Audit) ObjectID() string { return padded(a.Index) }

// Certificate is what the cluster's authority issued to a server, a node or a gateway.
type Certificate struct {
	Serial    string    `json:"serial"`
	Subject   string    `json:"subject"` // levelrail://CLUSTER/ROLE/ID
	NotAfter  time.Time `json:"not_after"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	PEM       string    `json:"pem"`
	Stamp     Stamp     `json:"stamp"`
}

func (Certificate) ObjectKind() Kind   { return KindCertificate }
func (c Certificate) ObjectID() string { return c.Serial }

// Policy grants abilities on objects ("model:chat", "model:*") to principals.
type Policy struct {
	Name       string    `json:"name"`
	Principals []string  `json:"principals"`
	Resources  []string  `json:"resources"`
	Abilities  []Ability `json:"abilities"`
	Owner      Owner     `json:"owner"`
	Stamp      Stamp     `json:"stamp"`
}

func (Policy) ObjectKind() Kind   { return KindPolicy }
func (p Policy) ObjectID() string { return p.Name }
