package handover

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// socket is a TCP socket of this process.
type socket struct {
	fd      int
	listens bool
	local   string // address and port as the kernel prints them; the same text for sockets that share them
	port    int
}

// sockets lists the TCP sockets of this process as they are now. A descriptor may be another file a moment later, so what
// is done with it must be harmless to any.
func sockets() []socket {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var out []socket
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
			continue
		}
		addr, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		s := socket{fd: fd}
		switch a := addr.(type) {
		case *unix.SockaddrInet4:
			s.port, s.local = a.Port, kernelAddr(a.Addr[:], a.Port)
		case *unix.SockaddrInet6:
			s.port, s.local = a.Port, kernelAddr(a.Addr[:], a.Port)
		default:
			continue
		}
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil {
			s.listens = n == 1
		}
		out = append(out, s)
	}
	return out
}

// kernelAddr writes an address as /proc/net/tcp has it: words of four bytes in the order of the machine, which is x86.
func kernelAddr(ip []byte, port int) string {
	var b strings.Builder
	const hex = "0123456789ABCDEF"
	put := func(c byte) { b.WriteByte(hex[c>>4]); b.WriteByte(hex[c&15]) }
	for i := 0; i < len(ip); i += 4 {
		for j := 3; j >= 0; j-- {
			put(ip[i+j])
		}
	}
	b.WriteByte(':')
	put(byte(port >> 8))
	put(byte(port))
	return b.String()
}

// ports are those that this process listens on.
func ports() map[int]bool {
	out := map[int]bool{}
	for _, s := range sockets() {
		if s.listens {
			out[s.port] = true
		}
	}
	return out
}

// connections are the open connections of clients: those of the ports that this process listens, or listened, on.
func connections(ports map[int]bool) []socket {
	var out []socket
	for _, s := range held(ports) {
		if info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.State == tcpEstablished {
			out = append(out, s)
		}
	}
	return out
}

// held are the sockets of clients' connections that are open here, whatever has become of the connection.
func held(ports map[int]bool) []socket {
	return slices.DeleteFunc(sockets(), func(s socket) bool { return s.listens || !ports[s.port] })
}

const (
	tcpEstablished = 1
	tcpListen      = "0A"
)

// listeners is how many sockets of this network listen on each address.
func listeners() map[string]int {
	out := map[string]int{}
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // a kernel without IPv6
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == tcpListen {
				out[f[1]]++
			}
		}
	}
	return out
}

// steer turns new connections to this process: of the sockets that share an address it has opened the last, and the kernel
// asks the program that is put here which of them gets a connection, counted in the order of opening. Otherwise it would
// be one by chance, also one that is about to be closed, with what waits in it. When the others are gone the program's
// answer names none, and the kernel chooses among those that are left.
func steer() error {
	count := listeners()
	var failed error
	for _, s := range sockets() {
		if !s.listens || count[s.local] < 2 {
			continue
		}
		last := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(count[s.local] - 1)}}
		program := unix.SockFprog{Len: 1, Filter: &last[0]}
		if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program); err != nil {
			failed = err
		}
	}
	return failed
}
