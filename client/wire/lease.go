package wire

// WatchShare is the watch kind that tells a gateway who else serves. The line with the id ShareID has Share; each other
// one is a key's id and calls that key's unused lease back.
const WatchShare = "share"

// ShareID is the id of the line with Share.
const ShareID = "share"

// Share tells a gateway by what its limits are bounded. A gateway alone counts by itself. One of several admits within the
// leases that it has, and says at once, under each new Book and Epoch, what it uses of every key, so that others can get
// the rest.
type Share struct {
	Book     string `json:"book"`     // names the book of leases; a server that starts anew keeps another
	Epoch    uint64 `json:"epoch"`    // grows when the gateway's whole word is needed anew
	Gateways int    `json:"gateways"` // that serve, this one included
	Alone    bool   `json:"alone,omitempty"`
}

// Amounts are numbers of each of a key's limits: requests a minute, tokens a minute, tokens of a day, requests in flight.
type Amounts struct {
	RPM         int64 `json:"rpm,omitempty"`
	TPM         int64 `json:"tpm,omitempty"`
	TPD         int64 `json:"tpd,omitempty"`
	MaxParallel int64 `json:"max_parallel,omitempty"`
}

// LeaseReport is what a gateway says of keys. POST /api/v1/gateway/leases on the gateway's socket, once a second while it
// shares, and at once when a request finds its lease used up.
type LeaseReport struct {
	GatewayID string     `json:"gateway_id"`
	Boot      string     `json:"boot"` // another one each time the gateway's process starts
	Book      string     `json:"book"`
	Epoch     uint64     `json:"epoch"`
	Complete  bool       `json:"complete,omitempty"` // under this book and epoch every key in use has been said
	Leaving   bool       `json:"leaving,omitempty"`  // the gateway ends and has kept what it says here; it wants no lease
	Keys      []LeaseUse `json:"keys"`
}

// LeaseUse is a gateway's use of one key, and what it may use.
type LeaseUse struct {
	KeyID string `json:"key_id"`
	// Seq grows with each word about the key. A lease answers one word, and counts only while that is the newest.
	Seq  int64   `json:"seq"`
	Used Amounts `json:"used"` // in the windows now, and in flight
	Held Amounts `json:"held"` // the lease that holds now
	// Frees is how many milliseconds pass until the oldest of Used leaves its window; 0: nothing does.
	Frees Amounts `json:"frees_ms"`
	// Days are tokens by the hour, as pairs of an hour since 1970 and a sum: all of the day at first, then what has changed.
	Days [][2]int64 `json:"days,omitempty"`
	Want bool       `json:"want,omitempty"` // a request finds the lease used up
	Wait bool       `json:"wait,omitempty"` // it waits, so others may be asked for what they do not use
}

// Leases answer a LeaseReport, for each key whose word was the newest and which is known.
type Leases struct {
	Book string  `json:"book"`
	Keys []Lease `json:"keys"`
}

// Lease is what a gateway may use of one key until it is told otherwise.
type Lease struct {
	KeyID string  `json:"key_id"`
	Seq   int64   `json:"seq"`
	May   Amounts `json:"may"`
	// RetryMS is in how many milliseconds at the earliest there is more; 0: not known, or there is enough.
	RetryMS int64 `json:"retry_ms,omitempty"`
	// Days, to a gateway that is alone, are the key's tokens of the last day by the hour, whichever gateway counted them.
	Days [][2]int64 `json:"days,omitempty"`
}
