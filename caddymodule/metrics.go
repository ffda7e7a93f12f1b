package caddymodule

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/levelrail/levelrail/caddymodule/late"
	"github.com/levelrail/levelrail/caddymodule/meter"
)

// buckets fit completions, which take from a blink to ten minutes.
var buckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600}

// metrics are the gateway's Prometheus collectors. They are made once and registered with every configuration, so that a
// reload keeps their counts. Labels are bounded: models, routes of the tables, classes and ends, never a key, an id or
// anything that a client writes.
type metrics struct {
	requests, tokens, bytes *prometheus.CounterVec
	duration, firstByte     *prometheus.HistogramVec
	all                     []prometheus.Collector

	adds  sync.Mutex
	known atomic.Pointer[map[outcome]*series] // replaced when there is a new one
}

// outcome is what decides which series a request counts in.
type outcome struct {
	model, route         string
	end                  meter.End
	status               int
	first, input, output bool // there is such a figure
}

// series are those that requests of one outcome count in: looked up once, since finding five by their labels takes longer
// than counting. Nil ones have nothing to count.
type series struct {
	requests, bytes, input, output prometheus.Counter
	duration, firstByte            prometheus.Observer
}

func newMetrics(s *shared) *metrics {
	name := func(n string) string { return "levelrail_gateway_" + n }
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(n), Help: help}, labels)
	}
	histogram := func(n, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: buckets}, []string{"model", "route"})
	}
	gauge := func(n, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name(n), Help: help}, f)
	}
	m := &metrics{
		requests:  counter("requests_total", "Requests by how they ended.", "model", "route", "status", "end"),
		tokens:    counter("tokens_total", "Tokens that engines said they read and wrote.", "model", "direction"),
		bytes:     counter("response_bytes_total", "Bytes of answers' bodies sent to clients.", "model", "route"),
		duration:  histogram("request_duration_seconds", "Time from a request's headers to the end of its answer."),
		firstByte: histogram("first_byte_seconds", "Time from a request's headers to the engine's first byte of its answer."),
	}
	m.all = []prometheus.Collector{m.requests, m.tokens, m.bytes, m.duration, m.firstByte,
		gauge("requests_in_flight", "Requests that are being served.", func() float64 { return float64(s.requests.Load()) }),
		gauge("sites_waiting", "Addresses of sites that cannot be opened yet.", func() float64 { return float64(late.Waiting()) }),
		gauge("usage_rows_held", "Hourly sums that the control plane has not accepted yet.", func() float64 { return float64(s.meter.Rows()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name("usage_rows_dropped_total"), Help: "Hourly sums that did not fit the bound or were refused, and are lost."},
			func() float64 { return float64(s.meter.Dropped()) }),
		gauge("control_plane_connected", "1 while the gateway follows a control plane.", func() float64 {
			if s.link.Live() {
				return 1
			}
			return 0
		}),
		gauge("table_age_limit_seconds", "The age of routes and keys from which on requests are refused; 0: none.", func() float64 { return s.link.MaxStale().Seconds() }),
		tableAge{s, prometheus.NewDesc(name("table_age_seconds"), "Since when routes and keys may be old: 0 while connected; absent when there never were any.", nil, nil)},
	}
	return m
}

// Record counts one request.
func (m *metrics) Record(r meter.Record) {
	o := outcome{r.Model, r.Route, r.End, r.Status, r.FirstByte > 0, r.Input > 0, r.Output > 0}
	var s *series
	if known := m.known.Load(); known != nil {
		s = (*known)[o]
	}
	if s == nil {
		s = m.add(o)
	}
	s.requests.Inc()
	s.bytes.Add(float64(r.Bytes))
	if s.duration != nil {
		s.duration.Observe(r.Duration.Seconds())
	}
	if s.firstByte != nil {
		s.firstByte.Observe(r.FirstByte.Seconds())
	}
	if s.input != nil {
		s.input.Add(float64(r.Input))
	}
	if s.output != nil {
		s.output.Add(float64(r.Output))
	}
}

// mostKnown bounds what is remembered: statuses are the engines', and models come and go.
const mostKnown = 4096

// add makes the series of an outcome, and remembers them.
func (m *metrics) add(o outcome) *series {
	s := &series{requests: m.requests.WithLabelValues(o.model, o.route, class(o.status), string(o.end)), bytes: m.bytes.WithLabelValues(o.model, o.route)}
	if o.end != meter.Refused { // a refusal's time says nothing of the model's
		s.duration = m.duration.WithLabelValues(o.model, o.route)
		if o.first {
			s.firstByte = m.firstByte.WithLabelValues(o.model, o.route)
		}
		if o.input {
			s.input = m.tokens.WithLabelValues(o.model, "input")
		}
		if o.output {
			s.output = m.tokens.WithLabelValues(o.model, "output")
		}
	}
	m.adds.Lock()
	defer m.adds.Unlock()
	next := map[outcome]*series{o: s}
	if known := m.known.Load(); known != nil && len(*known) < mostKnown {
		maps.Copy(next, *known)
	}
	m.known.Store(&next)
	return s
}

// class is a status as a label. 429 and 499 are told apart: one is a limit's doing, the other the client's.
func class(status int) string {
	switch {
	case status == 429:
		return "429"
	case status == 499:
		return "499"
	case status >= 200 && status < 600:
		return string([]byte{byte('0' + status/100), 'x', 'x'})
	}
	return "none"
}

// register puts the collectors into a configuration's registry. Several handlers, and apps of one configuration, may share it.
func (m *metrics) register(to *prometheus.Registry) error {
	for _, c := range m.all {
		if err := to.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return err
		}
	}
	return nil
}

// tableAge is a gauge that may be unknown.
type tableAge struct {
	s    *shared
	desc *prometheus.Desc
}

func (t tableAge) Describe(to chan<- *prometheus.Desc) { to <- t.desc }

func (t tableAge) Collect(to chan<- prometheus.Metric) {
	if age, known := t.s.link.Age(); known {
		to <- prometheus.MustNewConstMetric(t.desc, prometheus.GaugeValue, age.Seconds())
	}
}
