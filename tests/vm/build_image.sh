#!/bin/bash
# Builds the lab's virtual machine (disk, kernel, initrd) into .lab/, once per version of this script and guest/.
#
# Two cached steps: the bare Debian (.lab/base.tar, keyed by the package list) and the dressed image (.lab/root.img,
# keyed by everything). No loop mounts: debootstrap works in a private tmpfs and `mke2fs -d` writes the image.
#   build_image.sh            build what is stale
#   build_image.sh --check    exit 0 when the image is fresh, 1 when it would be built
# Exit status 3: the tools cannot be had here; 4: debootstrap failed (no network?).
# LAB_MIRROR overrides the Debian mirror that apt is configured with.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

SUITE=bookworm
PACKAGES=(
    systemd systemd-sysv systemd-oomd dbus dbus-user-session libpam-systemd udev kmod
    linux-image-cloud-amd64 busybox-static cpio
    python3 python3-psutil python3-rich
    earlyoom nohang
    procps util-linux mount login passwd tar e2fsprogs
)
EXCLUDED=(
    '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' '/usr/share/lintian/*'
    '/etc/kernel/postinst.d/initramfs-tools'    # we write our own initrd of seven modules, which boots faster
    '/lib/modules/*/kernel/drivers/net/*' '/lib/modules/*/kernel/drivers/infiniband/*'
    '/lib/modules/*/kernel/drivers/scsi/*' '/lib/modules/*/kernel/drivers/gpu/*'
    '/lib/modules/*/kernel/fs/xfs/*' '/lib/modules/*/kernel/fs/btrfs/*' '/lib/modules/*/kernel/fs/nfs*'
    '/lib/modules/*/kernel/net/*' '/lib/modules/*/kernel/sound/*'
)
IMAGE_MIB=2048                                  # sparse: the file takes what it holds

here=$(cd "$(dirname "$0")" && pwd)
lab=$(cd "$here/../.." && pwd)/.lab
say() { echo "lab: $*" >&2; }

hash_of() { sha256sum | cut -c1-16; }
base_key=$(printf '%s\n' "$SUITE" "${PACKAGES[@]}" "${EXCLUDED[@]}" | hash_of)
image_key=$(cd "$here" && find build_image.sh guest -type f ! -name '*.pyc' | LC_ALL=C sort | xargs sha256sum | hash_of)
fresh() { [ "$(cat "$lab/$1.key" 2>/dev/null)" = "$2" ] && [ -s "$lab/$1" ]; }

need_tools() {
    local missing=() pair
    for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap mke2fs:e2fsprogs cpio:cpio wget:wget; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null || { say "missing and no apt-get here: ${missing[*]}"; exit 3; }
    [ "$(id -u)" = 0 ] || { say "missing: ${missing[*]} (as root, this script installs them)"; exit 3; }
    say "installing ${missing[*]}"
    { apt-get update -qq \
        && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null \
        || { say "apt-get could not install ${missing[*]}"; exit 3; }
}

mirror() {   # the mirror apt itself uses for Debian, whatever the format of its sources
    local found=${LAB_MIRROR:-}
    # shellcheck disable=SC2016  # the dollar signs are apt's
    [ -n "$found" ] || found=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
        | awk -v suite="$SUITE" '$2 == suite && $3 == "main" {print $1; exit}')
    [ -n "$found" ] || { say "apt knows no mirror for Debian $SUITE: set LAB_MIRROR"; exit 3; }
    echo "$found"
}

make_base() {   # $1: an empty folder
    local started=$SECONDS target=$1 proxy url keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    url=$(mirror)
    proxy=$(apt-config dump --format '%v%n' Acquire::http::Proxy 2>/dev/null || true)
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy=$proxy https_proxy=${https_proxy:-$proxy}; fi
    mkdir -p "$target/etc/dpkg/dpkg.cfg.d" "$lab/debs"
    { echo force-unsafe-io; echo force-confold; printf 'path-exclude=%s\n' "${EXCLUDED[@]}"; } \
        >"$target/etc/dpkg/dpkg.cfg.d/lab"
    say "debootstrap of Debian $SUITE, ${#PACKAGES[@]} packages and what they need"
    DEBIAN_FRONTEND=noninteractive DEBOOTSTRAP_DIR=${DEBOOTSTRAP_DIR:-/usr/share/debootstrap} \
        debootstrap --variant=minbase --cache-dir="$lab/debs" --include="$(IFS=,; echo "${PACKAGES[*]}")" \
        $([ -r $keyring ] && echo --keyring=$keyring) "$SUITE" "$target" "$url" >"$lab/debootstrap.log" 2>&1 \
        || { say "debootstrap failed:"; tail -n 20 "$lab/debootstrap.log" >&2; exit 4; }
    (cd "$target" && rm -rf var/cache/apt var/lib/apt/lists/* debootstrap
     rm -rf usr/share/{doc,man,info,locale,lintian} var/log/*.log)
    tar -C "$target" --one-file-system -cf "$lab/base.tar.new" .
    mv "$lab/base.tar.new" "$lab/base.tar"
    echo "$base_key" >"$lab/base.tar.key"
    say "bare Debian in $((SECONDS - started)) s"
}

dress() {   # $1: a folder with the bare Debian
    local root=$1 unit
    cp -r "$here/guest/." "$root/"
    find "$root/usr/local" -type f -exec chmod 755 {} +
    mkdir -p "$root/state" "$root/opt/oomproof" "$root/var/lib/lab"
    chmod 1777 "$root/var/lib/lab"
    echo lab >"$root/etc/hostname"
    echo '127.0.0.1 localhost lab' >"$root/etc/hosts"
    echo '/dev/vda / ext4 rw,relatime 0 0' >"$root/etc/fstab"
    echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"   # a fixed one: the same machine at every boot
    chroot "$root" useradd -u 1000 -m -s /bin/bash ada
    chroot "$root" passwd -q -d root
    chroot "$root" passwd -q -d ada
    : >"$root/etc/motd"; rm -f "$root"/etc/update-motd.d/*
    # The memory daemons wait for the tests to start them. oomd is masked and not only disabled: Debian's drop-in for
    # user@.service (ManagedOOMMemoryPressure=kill) starts it with the first login.
    chroot "$root" systemctl disable -q earlyoom.service nohang.service nohang-desktop.service 2>/dev/null || true
    # The rest only makes the boot longer.
    for unit in systemd-oomd.service systemd-oomd.socket \
        apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
        fstrim.timer systemd-timesyncd.service getty@tty1.service systemd-pstore.service \
        systemd-networkd.service systemd-resolved.service systemd-update-utmp-runlevel.service \
        systemd-update-utmp.service modprobe@.service systemd-firstboot.service systemd-binfmt.service \
        kmod-static-nodes.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount \
        sys-kernel-tracing.mount sys-fs-fuse-connections.mount systemd-machine-id-commit.service \
        systemd-ask-password-console.path systemd-ask-password-wall.path systemd-hwdb-update.service \
        systemd-repart.service systemd-boot-system-token.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    mkdir -p "$root/etc/systemd/system/sysinit.target.wants"
    ln -sf /etc/systemd/system/lab-agent.service "$root/etc/systemd/system/sysinit.target.wants/"
    chroot "$root" python3 -m compileall -q /usr/local/lib/lab
}

make_initrd() {   # $1: the root folder; $2: where to put it
    local root=$1 work=$1.initrd version modules name
    version=$(basename "$root"/lib/modules/*)
    modules="$root/lib/modules/$version"
    mkdir -p "$work"/{bin,dev,proc,sys,newroot,modules}
    cp "$root/bin/busybox" "$work/bin/busybox"
    # modprobe knows the order and which are built in; each line is "insmod PATH"
    for name in virtio_pci virtio_blk virtio_console; do
        chroot "$root" modprobe -S "$version" --show-depends "$name"
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$work/order.full"
    while read -r name; do
        cp "$root$name" "$work/modules/"
        basename "$name"
    done <"$work/order.full" >"$work/modules/order"
    rm "$work/order.full"
    cat >"$work/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
while read -r module; do /bin/busybox insmod /modules/$module; done </modules/order
tries=0
while ! [ -b /dev/vda ] && [ $tries -lt 100 ]; do /bin/busybox sleep 0.1; tries=$((tries + 1)); done
/bin/busybox mount -t ext4 -o rw /dev/vda /newroot || { echo "lab: no root disk"; exec /bin/busybox sh; }
/bin/busybox umount /proc
/bin/busybox mount --move /dev /newroot/dev
exec /bin/busybox switch_root /newroot /sbin/init
INIT
    chmod 755 "$work/init"
    (cd "$work" && find . | LC_ALL=C sort | cpio -o -H newc --quiet) >"$2"   # not compressed: emulated gunzip is slow
    cp "$root/boot/vmlinuz-$version" "$lab/vmlinuz.new"
}

inside() {   # runs in a mount namespace of its own; the tmpfs goes away with it
    local scratch="$lab/scratch"
    rm -rf --one-file-system "$scratch"
    mkdir -p "$scratch"
    if [ "$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)" -gt 4096 ]; then
        mount -t tmpfs -o mode=755,size=3g lab "$scratch" 2>/dev/null || true   # no fsync to wait for
    fi
    mkdir -p "$scratch/root"
    if fresh base.tar "$base_key"; then
        tar -C "$scratch/root" -xpf "$lab/base.tar"
    else
        make_base "$scratch/root"
    fi
    dress "$scratch/root"
    make_initrd "$scratch/root" "$lab/initrd.new"
    rm -rf "$scratch/root/boot" "$scratch/root.initrd"
    mkdir "$scratch/root/boot"
    rm -f "$lab/root.img.new"
    truncate -s "${IMAGE_MIB}M" "$lab/root.img.new"
    mke2fs -q -t ext4 -m 0 -L lab -E lazy_itable_init=1,lazy_journal_init=1 -J size=16 \
        -d "$scratch/root" "$lab/root.img.new"
}

if [ "${1:-}" = --inside ]; then inside; exit 0; fi
if [ "${1:-}" = --check ]; then fresh root.img "$image_key"; exit; fi

started=$SECONDS
need_tools
if fresh root.img "$image_key"; then say "image is fresh ($image_key)"; exit 0; fi
mkdir -p "$lab"
exec 9>"$lab/build.lock"
flock 9                                         # two test runs at once: the second waits, then finds it fresh
if fresh root.img "$image_key"; then exit 0; fi
if [ "$(id -u)" != 0 ]; then say "building the image needs root (debootstrap makes device nodes)"; exit 3; fi
unshare --mount --propagation private "$0" --inside 9>&-
rm -rf --one-file-system "$lab/scratch"
for part in initrd vmlinuz root.img; do mv "$lab/$part.new" "$lab/$part"; done
echo "$image_key" >"$lab/root.img.key"
say "image built in $((SECONDS - started)) s, $(du -m "$lab/root.img" | cut -f1) MiB on disk"
