package systemd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWeakened: each way in which a drop-in takes isolation away is named, with its file; what changes nothing of it is not.
func TestWeakened(t *testing.T) {
	ours, err := os.ReadFile("testdata/levelrail-model-chat.service")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"PrivateNetwork=no":                            "PrivateNetwork=no",
		"PrivateNetwork = off":                         "PrivateNetwork=off",
		"PrivateNetwork=":                              "PrivateNetwork=",
		"PrivateUsers=false":                           "PrivateUsers=false",
		"DynamicUser=no\nUser=root":                    "DynamicUser=no, User=root",
		"User=":                                        "",
		"DevicePolicy=auto":                            "DevicePolicy=auto",
		"DeviceAllow=char-nvidia* rw":                  "DeviceAllow=char-nvidia* rw",
		"BindPaths=/srv/data":                          "BindPaths=/srv/data",
		"BindReadOnlyPaths=/run/dbus":                  "BindReadOnlyPaths=/run/dbus",
		"BindReadOnlyPaths=/opt/cuda /etc/ssl:/ssl":    "BindReadOnlyPaths=/opt/cuda /etc/ssl:/ssl",
		"BindReadOnlyPaths=/opt/cuda":                  "",
		"TemporaryFileSystem=":                         "TemporaryFileSystem=",
		"ProtectSystem=full":                           "ProtectSystem=full",
		"ProtectHome=no":                               "ProtectHome=no",
		"NoNewPrivileges=no":                           "NoNewPrivileges=no",
		"CapabilityBoundingSet=CAP_SYS_ADMIN":          "CapabilityBoundingSet=CAP_SYS_ADMIN",
		"AmbientCapabilities=CAP_NET_RAW":              "AmbientCapabilities=CAP_NET_RAW",
		"IPAddressDeny=":                               "IPAddressDeny=",
		"IPAddressAllow=any":                           "IPAddressAllow=any",
		"RestrictAddressFamilies=AF_INET":              "RestrictAddressFamilies=AF_INET",
		"RestrictAddressFamilies=~AF_UNIX":             "",
		"SystemCallFilter=@privileged":                 "SystemCallFilter=@privileged",
		"SystemCallFilter=~@clock":                     "",
		"SystemCallFilter=":                            "SystemCallFilter=",
		"JoinsNamespaceOf=other.service":               "JoinsNamespaceOf=other.service",
		"NetworkNamespacePath=/proc/1/ns/net":          "NetworkNamespacePath=/proc/1/ns/net",
		"ExecStart=\nExecStart=/bin/sh":                "ExecStart=/bin/sh",
		"ExecStartPre=+/bin/chmod 777 /":               "ExecStartPre=+/bin/chmod 777 /",
		"ExecStopPost=-+/bin/true":                     "ExecStopPost=-+/bin/true",
		"ExecStopPost=/bin/true":                       "",
		"SupplementaryGroups=\\\n  docker":             "SupplementaryGroups=docker",
		"# PrivateNetwork=no\n; DynamicUser=no":        "",
		"CPUWeight=200\nNice=5\nMemoryHigh=8G":         "",
		"Environment=OMP_NUM_THREADS=4":                "",
		"PrivateNetwork=yes\nProtectSystem=strict":     "",
		"PrivateNetwork=no\nPrivateNetwork=yes":        "",
		"PrivateNetwork=yes\n[Service]\nPrivateTmp=no": "PrivateTmp=no",
	} {
		got := Weakened(string(ours), []DropIn{{"/etc/x.conf", "[Service]\n" + text + "\n"}})
		var expect []string
		if want != "" {
			for _, w := range strings.Split(want, ", ") {
				expect = append(expect, w+" (/etc/x.conf)")
			}
		}
		if !slices.Equal(got, expect) {
			t.Errorf("%q: got %q, want %q", text, got, expect)
		}
	}
	got := Weakened(string(ours), []DropIn{{"/run/a.conf", "PrivateNetwork=no\nUser=root"}, {"/etc/b.conf", "PrivateNetwork=yes"}})
	if !slices.Equal(got, []string{"User=root (/run/a.conf)"}) {
		t.Errorf("a later file sets it right: %q", got)
	}
}

// TestOwnTextIsolates: the text of every kind of unit that we write weakens nothing of itself, and a line that is taken out of
// it by hand is missed.
func TestOwnTextIsolates(t *testing.T) {
	files, err := filepath.Glob("testdata/levelrail-model-*.service")
	if err != nil || len(files) < 4 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if got := Weakened(text, []DropIn{{f, text}}); len(got) > 0 {
			t.Errorf("%s weakens itself: %q", f, got)
		}
		if got := Missing(text, text); len(got) > 0 {
			t.Errorf("%s misses %q", f, got)
		}
		without := strings.Replace(text, "NoNewPrivileges=yes\n", "", 1)
		if got := Missing(text, without); !slices.Equal(got, []string{"NoNewPrivileges=yes is missing"}) {
			t.Errorf("%s without NoNewPrivileges: %q", f, got)
		}
	}
}
