# shellcheck shell=bash
# Sourced by `up`: the images in the local Docker engine, pulled or built, and the controllers' manifests.

pull_images() {
  local image
  PYTHON_IMAGE=python:3.13-slim
  NODE_IMAGE=kindest/node:v1.34.0 # the newest of this minor version that kind's authors publish for kind 0.30
  for image in "$NODE_IMAGE" "$JOBSET_IMAGE" "$KUEUE_IMAGE" "$PYTHON_IMAGE"; do
    docker image inspect "$image" > /dev/null 2>&1 || { say "pulling $image"; docker pull --quiet "$image"; }
  done
  if [ ! -x "$BIN/kubectl" ]; then # every node image has one
    local container
    container=$(docker create "$NODE_IMAGE")
    docker cp --quiet "$container:/usr/bin/kubectl" "$BIN/kubectl"
    docker rm "$container" > /dev/null
  fi
  release_manifest jobset "$JOBSET" "$JOBSET_SHA256"
  release_manifest kueue "$KUEUE" "$KUEUE_SHA256"
}

release_manifest() { # name, version, SHA-256
  fresh "$1-manifest" "release $2" && [ -s "$CACHE/$1.yaml" ] && return
  say "downloading the manifest of $1 $2"
  curl --silent --show-error --fail --location --output "$CACHE/$1.yaml" \
    "https://github.com/kubernetes-sigs/$1/releases/download/$2/manifests.yaml"
  echo "$3  $CACHE/$1.yaml" | sha256sum --check --quiet || fail "the manifest of $1 is not the one that is pinned" "rm $CACHE/$1.yaml"
  stamp "$1-manifest" "release $2"
}

build_images() { # but for the root file systems, which `up` makes meanwhile
  node_image
  controller jobset "$JOBSET" "$JOBSET_IMAGE"
  controller kueue "$KUEUE" "$KUEUE_IMAGE"
}

# What a result was made from is kept beside it: a change of any input makes it anew.
fresh() { [ "$(cat "$CACHE/stamps/$1" 2> /dev/null)" = "$2" ]; }
stamp() { printf '%s\n' "$2" > "$CACHE/stamps/$1"; }
have() { docker image inspect "$1" > /dev/null 2>&1; }

debian() { # folder, packages: a minimal Debian with them
  local folder=$1 packages=$2
  rm -rf "$folder"
  debootstrap --variant=minbase --include="$packages" trixie "$folder" > "$CACHE/debootstrap.log"
  # Downloads and indexes are of no use in an image.
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
}

from_folder() { # folder, image, further arguments of docker import
  local folder=$1 image=$2
  shift 2
  tar -C "$folder" -c . | docker import "$@" - "$image" > /dev/null
}

quietly() { # run a command; its output is shown only if it fails
  local log=$CACHE/last-build.log
  "$@" > "$log" 2>&1 || { tail -n 20 "$log"; return 1; }
}

node_root() {
  [ -e "$CACHE/node-root/.complete" ] && return
  say "debootstrap: the nodes' root file system"
  local packages=containerd,containernetworking-plugins,runc,ca-certificates,conntrack,curl,ebtables,ethtool,ipset
  debian "$CACHE/node-root" "$packages,iptables,iproute2,jq,kmod,mount,nftables,procps,socat"
  touch "$CACHE/node-root/.complete"
}

python_image() {
  have "$PYTHON_IMAGE" && return
  say "debootstrap: a base for the trainer's image"
  local root=$CACHE/python-root
  debian "$root" python3,python3-venv,python3-pip,python-is-python3,passwd,ca-certificates
  # pip in a build has to trust what this machine trusts: there may be a proxy with a certificate of its own.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  from_folder "$root" "$PYTHON_IMAGE" --change \
    'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_BREAK_SYSTEM_PACKAGES=1'
  rm -rf "$root"
}

node_image() {
  local inputs
  inputs=$(cat "$HERE"/node/* "$CACHE"/{kubernetes,etcd,coredns}.built "$HERE/images.sh" | sha256sum)
  have "$NODE_IMAGE" && fresh node-image "$inputs" && return
  say "building the control plane's images"
  system_image
  say "building $NODE_IMAGE"
  local context=$CACHE/node-context name images=()
  rm -rf "$context" && mkdir -p "$context"
  cp "$HERE"/node/* "$context"
  ln "$BIN"/{kubelet,kubeadm,kubectl} "$context"
  for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do
    images+=("registry.k8s.io/$name:$KUBERNETES")
  done
  images+=(xpk-e2e/system:latest "registry.k8s.io/etcd:$ETCD" "registry.k8s.io/pause:$PAUSE")
  docker save --output "$context/system.tar" "${images[@]}" "registry.k8s.io/coredns/coredns:$COREDNS"
  from_folder "$CACHE/node-root" xpk-e2e/debian-node
  quietly docker build --tag "$NODE_IMAGE" --build-arg "KUBERNETES=$KUBERNETES" "$context"
  rm -rf "$context"
  stamp node-image "$inputs"
}

# One image holds every program of the control plane, and goes by each of the names that kubeadm asks for.
system_image() {
  local root=$CACHE/system name
  rm -rf "$root" && mkdir -p "$root"/{bin,tmp,usr/local/bin,usr/sbin}
  ln "$BIN"/{kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,kubectl,etcd,coredns} "$root/usr/local/bin/"
  gcc -static -O2 -o "$root/pause" "$HERE/node/pause.c"
  cp /bin/busybox "$root/bin/busybox"
  ln -s busybox "$root/bin/sh"
  install -m 755 "$HERE/node/host-routes" "$root/usr/local/bin/host-routes"
  packet_filters "$root"
  from_folder "$root" xpk-e2e/system:latest --change 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  for name in "kube-apiserver:$KUBERNETES" "kube-controller-manager:$KUBERNETES" "kube-scheduler:$KUBERNETES" \
    "kube-proxy:$KUBERNETES" "etcd:$ETCD"; do
    docker tag xpk-e2e/system:latest "registry.k8s.io/$name"
  done
  entrypoint "registry.k8s.io/coredns/coredns:$COREDNS" /usr/local/bin/coredns
  entrypoint "registry.k8s.io/pause:$PAUSE" /pause
  rm -rf "$root"
}

entrypoint() { # image, program: the system image with another entry point
  printf 'FROM xpk-e2e/system:latest\nENTRYPOINT ["%s"]\n' "$2" | quietly docker build --tag "$1" -
}

packet_filters() { # kube-proxy's programs, with every library that they or their extensions load
  local root=$1 source=$CACHE/node-root file name
  local extensions=/usr/lib/x86_64-linux-gnu/xtables
  local programs=(/usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/conntrack /usr/sbin/ipset /usr/bin/kmod)
  tar -C "$source" -ch "${programs[@]/#/.}" ".$extensions" | tar -C "$root" -x
  for file in "${programs[@]}" "$source$extensions"/*.so; do
    chroot "$source" ldd "${file#"$source"}" 2> /dev/null | grep -oE '/[^ ]+\.so[^ ]*' || true
  done | sort -u | while read -r file; do
    mkdir -p "$root${file%/*}"
    cp -L "$source$file" "$root$file"
  done
  for name in iptables ip6tables; do
    ln -s xtables-nft-multi "$root/usr/sbin/$name"
    ln -s xtables-nft-multi "$root/usr/sbin/$name-save"
    ln -s xtables-nft-multi "$root/usr/sbin/$name-restore"
  done
}

# A controller's module holds its install manifest too; it names a staging image that is not ours to pull.
controller() { # name, version, image
  local name=$1 image=$3 module inputs context=$CACHE/controller
  inputs="$2 $(sha256sum < "$CACHE/$name.built")"
  have "$image" && [ -s "$CACHE/$name.yaml" ] && fresh "$name" "$inputs" && return
  say "building the image and the manifest of $name"
  rm -rf "$context" && mkdir -p "$context"
  ln "$BIN/$name" "$context/manager"
  printf '%s\n' 'FROM scratch' 'COPY manager /manager' 'USER 65532:65532' 'ENTRYPOINT ["/manager"]' > "$context/Dockerfile"
  quietly docker build --tag "$image" "$context"
  rm -rf "$context"
  module=$(cd "$HERE/tools/$name" && go list -m -f '{{.Dir}}' "sigs.k8s.io/$name")
  "$BIN/kubectl" kustomize "$module/config/default" 2> /dev/null |
    sed -E "s#[^ ]*/k8s-staging-images/$name/$name:[^ ]+#$image#; s/imagePullPolicy: Always/imagePullPolicy: IfNotPresent/" > "$CACHE/$name.yaml"
  stamp "$name" "$inputs"
}
