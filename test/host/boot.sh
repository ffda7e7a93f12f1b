# Runs as process 1 of new mount, process, UTS, IPC and network namespaces, and turns into systemd on an overlay.
# Arguments: NAME of the cgroup · DIR of the host (upper, work, root) · LOWER root · HOSTNAME · then pairs SOURCE TARGET
# to be bound read-only. It uses only bash and util-linux of this machine.
set -eu
name=$1 dir=$2 lower=$3 hostname=$4
shift 4
root=$dir/root

mount --make-rprivate /

# A cgroup of its own at the top of the hierarchy, and a namespace that shows nothing above it: several hosts at a time.
if [ -z "${LEVELRAIL_CGROUP:-}" ]; then
  mount -t cgroup2 cgroup2 "$dir/cgroup"
  for c in cpu memory io pids; do
    echo "+$c" >"$dir/cgroup/cgroup.subtree_control" 2>/dev/null || true # where another hierarchy has it
  done
  mkdir -p "$dir/cgroup/$name"
  echo 0 >"$dir/cgroup/$name/cgroup.procs"
  umount "$dir/cgroup"
  LEVELRAIL_CGROUP=$name exec unshare --cgroup -- bash "$BOOT_SCRIPT" "$name" "$dir" "$lower" "$hostname" "$@"
fi

mount -t overlay overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" "$root"

mount -t proc proc "$root/proc"
# A sysctl of the kernel would change the machine that runs the tests. The network's are the namespace's own.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,ro "$root/proc/sys"
if [ -e "$root/proc/sysrq-trigger" ]; then
  mount --bind "$root/proc/sysrq-trigger" "$root/proc/sysrq-trigger"
  mount -o remount,bind,ro "$root/proc/sysrq-trigger"
fi
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys" # read-only: no udev, no powers over devices
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs "$root/run"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
# A boot id for each boot, or the journal takes all boots for one.
cat /proc/sys/kernel/random/uuid >"$root/run/boot-id"
mount --bind "$root/run/boot-id" "$root/proc/sys/kernel/random/boot_id"
mount -o remount,bind,ro "$root/proc/sys/kernel/random/boot_id"
mount -t tmpfs -o mode=0755,nosuid tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  : >"$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/dev/net"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mknod "$root/dev/net/tun" c 10 200 2>/dev/null || true # only meshes need it

while [ $# -gt 0 ]; do
  source=$1 target=$root$2
  shift 2
  if [ -d "$source" ]; then
    mkdir -p "$target"
  else
    mkdir -p "$(dirname "$target")"
    [ -e "$target" ] || : >"$target"
  fi
  mount --bind "$source" "$target"
  mount -o remount,bind,ro "$target"
done

hostname "$hostname" 2>/dev/null || echo "$hostname" >/proc/sys/kernel/hostname
cd "$root"
pivot_root . .
umount -l .
cd /
mount --make-rshared / # else LoadCredential= gives units an empty directory
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=levelrail-test \
  /lib/systemd/systemd --show-status=no
