#!/bin/busybox sh
# The first program of a guest: load what reaches the root file system, and go there. The root is a
# squashfs that several guests share; what a guest writes stays in its memory.
B=/bin/busybox
$B mount -t proc none /proc
$B mount -t sysfs none /sys
$B mount -t devtmpfs none /dev
for module in $($B cat /modules/order); do $B insmod /modules/$module; done
$B mount -t squashfs -o ro /dev/vda /mnt/ro || exec $B poweroff -f
$B mount -t tmpfs none /mnt/rw
$B mkdir /mnt/rw/upper /mnt/rw/work
$B mount -t overlay -o lowerdir=/mnt/ro,upperdir=/mnt/rw/upper,workdir=/mnt/rw/work none /mnt/new
for folder in proc sys dev; do $B mount -o move /$folder /mnt/new/$folder; done
exec $B switch_root /mnt/new /sbin/guest-init
