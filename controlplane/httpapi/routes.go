package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/levelrail/levelrail/client/wire"
)

// routes registers every operation; who may use each is in the table of access.go.
func (s *Server) routes() {
	accepted := func(op *huma.Operation) { op.DefaultStatus = http.StatusAccepted }
	created := func(op *huma.Operation) { op.DefaultStatus = http.StatusCreated }
	// Agents may be of a newer release: what this server does not know is passed over.
	lenient := func(op *huma.Operation) {
		op.SkipValidateBody, op.MaxBodyBytes = true, 8<<20
	}

	operation(s, "get-status", http.MethodGet, "/status", "How the control plane stands", s.getStatus)

	operation(s, "list-models", http.MethodGet, "/models", "List models", s.listModels)
	operation(s, "deploy-model", http.MethodPost, "/models", "Deploy a model", s.deployModel, created,
		alsoAnswers[wire.Deployed](s, http.StatusOK, "the same is deployed already; there is no key in the answer"))
	operation(s, "get-model", http.MethodGet, "/models/{name}", "Get a model", s.getModel)
	operation(s, "update-model", http.MethodPut, "/models/{name}", "Give a model a new revision", s.updateModel)
	operation(s, "delete-model", http.MethodDelete, "/models/{name}", "Take a model down", s.deleteModel, accepted)
	operation(s, "restart-model", http.MethodPost, "/models/{name}/restart", "Restart a model's engines", s.restartModel, accepted)
	operation(s, "rotate-engine-key", http.MethodPost, "/models/{name}/rotate-engine-key", "Give a model's engines new keys, and restart them", s.rotateEngineKey, accepted)
	operation(s, "rotate-key", http.MethodPost, "/models/{name}/rotate-key", "Replace the key named default at once", s.rotateKey, created)
	operation(s, "set-hf-token", http.MethodPut, "/models/{name}/hf-token", "Set the Hugging Face token, or take it away, and restart", s.setHubToken, accepted)
	operation(s, "get-model-logs", http.MethodGet, "/models/{name}/logs", "Stream the journal of a model", s.getLogs, streams[wire.LogLine](s, "one line of the journal each"))
	operation(s, "list-keys", http.MethodGet, "/models/{name}/keys", "List a model's keys", s.listKeys)
	operation(s, "create-key", http.MethodPost, "/models/{name}/keys", "Make a further key", s.createKey, created)
	operation(s, "replace-key", http.MethodPost, "/models/{name}/keys/{id}/rotate", "Make a key in place of another, which works on for a while", s.replaceKey, created)
	operation(s, "revoke-key", http.MethodDelete, "/models/{name}/keys/{id}", "Revoke a key, and wait for the gateways to refuse it", s.revokeKey)
	operation(s, "get-usage", http.MethodGet, "/models/{name}/usage", "What each key of a model used, by the hour", s.modelUsage)
	operation(s, "list-requests", http.MethodGet, "/models/{name}/requests", "List what is in flight for a model", s.listRequests)
	operation(s, "cancel-request", http.MethodDelete, "/models/{name}/requests/{id}", "End a request in flight", s.cancelRequest)
	operation(s, "explain-key", http.MethodGet, "/models/{name}/explain", "Where a key's limits stand, and which refused last", s.explainKey)

	operation(s, "list-nodes", http.MethodGet, "/nodes", "List nodes", s.listNodes)
	operation(s, "get-node", http.MethodGet, "/nodes/{id}", "Get a node by id or name", s.getNode)

	operation(s, "list-weights", http.MethodGet, "/weights", "List the weights on the nodes' disks", s.listWeights)
	operation(s, "delete-weights", http.MethodDelete, "/weights/{name}", "Delete weights that no model uses", s.deleteWeights)

	operation(s, "list-tokens", http.MethodGet, "/tokens", "List API tokens", s.listTokens)
	operation(s, "create-token", http.MethodPost, "/tokens", "Make an API token", s.createToken, created)
	operation(s, "revoke-token", http.MethodDelete, "/tokens/{id}", "Revoke an API token", s.revokeToken)

	operation(s, "create-backup", http.MethodPost, "/backups", "Take a backup of all that the cluster must not forget", s.createBackup,
		answers(ndjson))

	operation(s, "watch", http.MethodGet, "/watch", "Follow what changes", s.getWatch, streams[wire.WatchLine](s, "one change each; a heartbeat every 10 seconds"))
	operation(s, "watch-post", http.MethodPost, "/watch", "Follow what changes, as an agent or gateway", s.postWatch, lenient, streams[wire.WatchLine](s, ""), func(op *huma.Operation) {
		op.Hidden = true
		op.BodyReadTimeout = -1 // a deadline would end the stream
	})

	operation(s, "get-ca", http.MethodGet, "/ca.pem", "The authority that signs the server's certificate", s.getCA, answers("application/x-pem-file"))
	operation(s, "get-openapi", http.MethodGet, "/openapi.json", "This document", s.getOpenAPI, answers("application/openapi+json"))

	operation(s, "agent-hello", http.MethodPost, "/agent/hello", "An agent's first word", s.agentHello, lenient)
	operation(s, "agent-report", http.MethodPost, "/agent/report", "How a node stands", s.agentReport, lenient)
	operation(s, "agent-hf-token", http.MethodGet, "/agent/models/{name}/hf-token", "A model's Hugging Face token, for its download", s.agentHubToken)
	operation(s, "gateway-usage", http.MethodPost, "/gateway/usage", "What a gateway has counted", s.gatewayUsage, lenient)
	operation(s, "gateway-seen", http.MethodPost, "/gateway/seen", "How far a gateway has come in its watch", s.gatewaySeen, lenient)
	operation(s, "gateway-answer", http.MethodPost, "/gateway/answers/{id}", "A gateway's answer to a question", s.gatewayAnswer, lenient)
	operation(s, "gateway-wake", http.MethodPost, "/gateway/wake", "Somebody waits for a sleeping model", s.gatewayWake, lenient)
	operation(s, "gateway-activity", http.MethodPost, "/gateway/activity", "Which models are used", s.gatewayActivity, lenient)
	operation(s, "gateway-leases", http.MethodPost, "/gateway/leases", "What a gateway uses of shared keys, and what it may", s.gatewayLeases, lenient)
	operation(s, "agent-logs", http.MethodPost, "/agent/logs/{id}", "Lines that somebody has asked for", s.agentLogs)
}

// streams documents an answer of one JSON object a line.
func streams[T any](s *Server, what string) func(*huma.Operation) {
	return func(op *huma.Operation) {
		schema := s.api.OpenAPI().Components.Schemas.Schema(typeOf[T](), true, "")
		op.Responses = map[string]*huma.Response{"200": {Description: what, Content: map[string]*huma.MediaType{ndjson: {Schema: schema}}}}
	}
}

// alsoAnswers documents a second status with a document.
func alsoAnswers[T any](s *Server, status int, what string) func(*huma.Operation) {
	return func(op *huma.Operation) {
		schema := s.api.OpenAPI().Components.Schemas.Schema(typeOf[T](), true, "")
		op.Responses = map[string]*huma.Response{
			statusText(status): {Description: what, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}},
			"default":          s.refusals(),
		}
	}
}

// answers documents an answer that is no JSON document of ours.
func answers(contentType string) func(*huma.Operation) {
	return func(op *huma.Operation) {
		op.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{contentType: {Schema: &huma.Schema{}}}}}
	}
}

func (s *Server) refusals() *huma.Response {
	return &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{"application/json": {Schema: new(refusal).Schema(s.api.OpenAPI().Components.Schemas)}}}
}

// raw is an answer whose bytes are ready.
type raw struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

func (s *Server) getCA(context.Context, *none) (*raw, error) {
	return &raw{ContentType: "application/x-pem-file", Body: s.o.Facts().CAPEM}, nil
}

func (s *Server) getOpenAPI(context.Context, *none) (*raw, error) {
	text, err := s.openAPI()
	if err != nil {
		return nil, s.internal("write the OpenAPI document", err)
	}
	return &raw{ContentType: "application/openapi+json", Body: text}, nil
}
