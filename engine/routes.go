package engine

import "net/http"

// textRoutes are the OpenAI routes that every engine serves. They are matched exactly and forwarded as they stand here:
// engines keep unsafe routes under /v1/ too. how says what is special about an engine's completions, chat or not.
func textRoutes(how Route) []Route {
	chat, text := how, how
	chat.Path, chat.Method, chat.Kind = "/v1/chat/completions", http.MethodPost, "chat"
	text.Path, text.Method, text.Kind = "/v1/completions", http.MethodPost, "completions"
	return []Route{
		chat,
		text,
		{Path: "/v1/embeddings", Method: http.MethodPost, Kind: "embeddings"},
		{Path: "/v1/responses", Method: http.MethodPost, Kind: "responses"},
	}
}

// rerankRoutes are where an engine takes a query and documents, and says how well each document answers it. They work with a
// model for that.
func rerankRoutes(paths ...string) (routes []Route) {
	for _, p := range paths {
		routes = append(routes, Route{Path: p, Method: http.MethodPost, Kind: "rerank"})
	}
	return routes
}
