package caddymodule

import (
	"bytes"
	"io"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

var oneRecord = meter.Record{RequestID: "req_0123456789abcdef01234567", Method: "POST", Route: "/v1/chat/completions", Model: "chat", KeyID: "key_a", KeyPrefix: "lr-01234", Status: 200,
	End: meter.Complete, Start: time.Unix(1700000000, 0), Duration: 12 * time.Millisecond, FirstByte: 9 * time.Millisecond, Bytes: 1024, HasUsage: true, Input: 100, Output: 50}

// BenchmarkLine is what a request's line costs, without the write.
func BenchmarkLine(b *testing.B) {
	c := newCurrentLog(zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.InfoLevel)).Named("levelrail"))
	b.ReportAllocs()
	for b.Loop() {
		c.Record(oneRecord)
	}
}

// BenchmarkMetrics is what counting a request for Prometheus costs.
func BenchmarkMetrics(b *testing.B) {
	m := newMetrics(new(shared))
	b.ReportAllocs()
	for b.Loop() {
		m.Record(oneRecord)
	}
}

// TestLineKeepsNothing: a line has its own request's words and none of the one before, whose memory it is written from.
func TestLineKeepsNothing(t *testing.T) {
	var out bytes.Buffer
	c := newCurrentLog(zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg"}), zapcore.AddSync(&out), zap.InfoLevel)))
	first, second := oneRecord, meter.Record{Method: "GET", Status: 404, End: meter.Refused}
	first.Code = "code"
	c.Record(first)
	out.Reset()
	c.Record(second)
	want := `{"msg":"request","request_id":"","method":"GET","route":"","model":"","key":"","status":404,"duration_ms":0,"bytes":0,"end":"refused"}` + "\n"
	if out.String() != want {
		t.Errorf("the line is %s", out.String())
	}
}
