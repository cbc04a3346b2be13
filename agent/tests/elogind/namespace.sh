# A machine of its own for one logind: what it starts, mounts and signals ends with this shell,
# which ends with whoever holds its input. Runs as the first process of new namespaces.
# Arguments: the test's directory, elogind's program, the directories of its libraries.
set -eu
dir=$1
program=$2
export LD_LIBRARY_PATH=$3

[ $$ = 1 ] || { echo "not in a namespace"; exit 1; }
mount --make-rprivate /
mount -t tmpfs none /run
# elogind needs a cgroup tree.
mount -t tmpfs none /sys/fs/cgroup
mkdir /sys/fs/cgroup/unified
mount -t cgroup2 none /sys/fs/cgroup/unified
# elogind reads the drop-in that the agent writes for systemd-logind.
mkdir -p /run/elogind/logind.conf.d
mount --bind "$dir/etc/systemd/logind.conf.d" /run/elogind/logind.conf.d

# Each program that could power off a machine is replaced by one that records its call. None of them
# would reach this machine's init from here, and none of them may try.
for name in systemctl poweroff reboot halt shutdown telinit init; do
    for path in /sbin/$name /bin/$name /usr/sbin/$name /usr/bin/$name; do
        [ -e "$path" ] || continue
        mount --bind "$dir/action" "$(readlink -f "$path")"
    done
done
cmp -s /sbin/poweroff "$dir/action" || { echo "/sbin/poweroff could not be masked"; exit 1; }

echo ready
while read -r order; do
    case $order in
    start)
        "$program" >>"$dir/elogind.log" 2>&1 &
        pid=$!
        ;;
    kill)
        kill -KILL "$pid"
        wait "$pid" 2>/dev/null || true
        ;;
    hup) kill -HUP "$pid" ;;
    esac
    echo "$order"
done
