#!/bin/sh
# Process 1 of a guest: mounts, the network, the modules asked for, a soft RDMA device, and then the
# agent through which the host runs commands. When the agent ends, so does the guest.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 PYTHONUNBUFFERED=1
for word in $(cat /proc/cmdline); do
	case $word in
	offstage.name=*) name=${word#*=} ;;
	offstage.address=*) address=${word#*=} ;;
	offstage.modules=*) modules=$(echo "${word#*=}" | tr , ' ') ;;
	esac
done
mkdir -p /dev/pts /dev/shm /share
mount -t devpts none /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs none $folder; done
ln -sf /proc/self/fd /dev/fd
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /share
echo "$name" > /proc/sys/kernel/hostname
ulimit -l unlimited
ip link set lo up
if [ -n "$address" ] && [ -e /sys/class/net/eth0 ]; then
	ip addr add "$address" dev eth0
	ip link set eth0 mtu 9000 up
fi
for module in $modules; do modprobe "$module" || echo "guest: no module $module"; done
if [ -d /sys/module/rdma_rxe ] && [ -e /sys/class/net/eth0 ]; then
	rdma link add rxe0 type rxe netdev eth0 || echo "guest: no soft RDMA device"
fi
for port in /sys/class/virtio-ports/*; do
	[ "$(cat "$port/name")" = agent ] && agent=/dev/${port##*/}
done
mkdir -p /var/local/run /run/qemu
qemu-ga --method virtio-serial --path "$agent" --statedir /run/qemu
exec busybox poweroff -f
