// Package agent_test runs the real agent on booted Debian hosts: the program as the package installs it, systemd, the
// journal, real engines and weights. Only the control plane and the Hub are stand-ins, so that each test says exactly what
// is assigned and what goes wrong. The whole product on one host is tested in test/e2e.
package agent_test
