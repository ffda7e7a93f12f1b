#!/bin/sh
# The common beginning of all maintainer scripts: packaging/build puts it in front of each. Every function may run twice.
#
# The rules that they keep:
# - Users, then directories, then sockets, then services. In another order systemd makes /run/levelrail/engines by itself,
#   open to everybody.
# - A unit is enabled when it is first installed. What an operator then disables, stops or masks stays so through upgrades.
# - Removing stops what runs and keeps data and settings. Purging deletes them.
set -e

# booted: systemd runs here. In a chroot or a plain container, units are enabled and not started.
booted() { [ -d /run/systemd/system ]; }

marker=/run/levelrail-dpkg.$DPKG_MAINTSCRIPT_PACKAGE

# note_install is for preinst: it remembers over the unpacking that this is an installation and not an upgrade. The
# version that postinst gets does not tell: it is also there when a removed package comes back.
note_install() {
    if [ "$1" = install ] && booted; then : >"$marker"; fi
}

# prepare NAME makes the users and directories of /usr/lib/{sysusers,tmpfiles}.d/NAME.conf. It fails the installation
# rather than go on without them.
prepare() {
    systemd-sysusers "$1.conf"
    systemd-tmpfiles --create "$1.conf"
}

# enable_units UNIT… enables what is new here, and leaves what an operator has chosen.
enable_units() {
    for unit in "$@"; do
        deb-systemd-helper unmask "$unit" >/dev/null || true # only a mask that a removal left
        if deb-systemd-helper --quiet was-enabled "$unit"; then
            deb-systemd-helper enable "$unit" >/dev/null || true
        else
            deb-systemd-helper update-state "$unit" >/dev/null || true
        fi
    done
}

# fresh: postinst ends an installation, or undoes a removal that failed.
fresh() {
    [ "$1" = abort-remove ] && return 0
    [ -e "$marker" ] && rm -f "$marker"
}

# invoke ACTION UNIT… asks systemd, unless policy-rc.d forbids it. A service that does not start does not break the
# installation: its package is sound, and what it lacks can be mended afterwards.
invoke() {
    deb-systemd-invoke "$@" ||
        echo "$DPKG_MAINTSCRIPT_PACKAGE: systemctl $* failed; journalctl -u ${2%.*} says why" >&2
}

# active UNIT: it runs now.
active() { systemctl --quiet is-active "$1" 2>/dev/null; }

# forget_units UNIT… is for postrm: systemd reads its units again, and a purge deletes what enabling left.
forget_units() {
    action=$1
    shift
    if [ "$action" = purge ] && command -v deb-systemd-helper >/dev/null; then
        for unit in "$@"; do deb-systemd-helper purge "$unit" >/dev/null || true; done
    fi
    if booted; then
        systemctl daemon-reload || true
        systemctl reset-failed "$@" 2>/dev/null || true
    fi
}

# tidy deletes the directories that the packages share, once the last of them has left them empty. Never the directory of
# the engines' sockets: that is the agent's alone, and engines of an agent that is still here need it closed.
tidy() {
    rmdir /run/levelrail /var/lib/levelrail /etc/levelrail 2>/dev/null || true
}

