// Package listener is what every HTTP listener of Levelrail has in common, whoever is at the other end: which requests of
// a browser it takes (Local), how many connections it has and of whom (Budget), what failed authentications cost and
// whether they are reported (Failures), and what becomes of an address that cannot be opened yet (Open).
//
// It uses the standard library only and starts nothing by itself but what Open goes on trying. Who may do what is the
// business of the package that serves: controlplane/httpapi and caddymodule/gateway.
package listener
