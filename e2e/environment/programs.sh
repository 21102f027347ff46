# shellcheck shell=bash
# Sourced by `up`: the programs, from Debian packages and from Go modules that tools/*/go.sum pin.

debian_packages() {
  local missing=() program
  for program in dockerd docker iptables debootstrap jq curl gcc; do
    command -v "$program" > /dev/null || missing+=("$program")
  done
  [ -e /bin/busybox ] || missing+=(busybox)
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" = 0 ] || fail "these are not installed: ${missing[*]}" "run this as root, or install them first"
  say "installing Debian packages for ${missing[*]}"
  apt-get update -qq
  local client=() # newer releases package it apart from the engine
  apt-cache show docker-cli > /dev/null 2>&1 && client=(docker-cli)
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    docker.io "${client[@]}" iptables debootstrap jq curl ca-certificates busybox-static gcc libc6-dev > /dev/null
}

torch() { # Debian's build for CPUs: 150 MB; PyPI's is 540 MB and requires CUDA
  "$TORCH_PYTHON" -c 'import torch.distributed' 2> /dev/null && return
  [ "$(id -u)" = 0 ] || fail "$TORCH_PYTHON cannot import torch" "run this as root, or set XPK_E2E_TORCH_PYTHON"
  say "installing Debian's python3-torch"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch > /dev/null
  "$TORCH_PYTHON" -c 'import torch.distributed' || fail "$TORCH_PYTHON cannot import torch" "set XPK_E2E_TORCH_PYTHON"
}

chromium() { # for the tests of the console; Ubuntu has no package of it, but its machines on GitHub have Chrome
  command -v chromium chromium-browser google-chrome > /dev/null && return
  [ "$(id -u)" = 0 ] || fail "Chromium is not installed" "run this as root, or install it first"
  say "installing Debian's chromium"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null
}

docker_engine() {
  local wrapper=/usr/local/sbin/runc-bounded
  docker info > /dev/null 2>&1 && return
  say "starting the Docker engine"
  install -m 755 "$HERE/node/runc-bounded" "$wrapper"
  # In a session of its own, and without our stdout: it outlives this script, and `eval` must not wait for it.
  setsid dockerd --add-runtime "bounded=$wrapper" --default-runtime bounded \
    > "$CACHE/dockerd.log" 2>&1 < /dev/null 3>&- &
  for _ in $(seq 120); do
    docker info > /dev/null 2>&1 && return
    sleep 0.5
  done
  tail -n 20 "$CACHE/dockerd.log"
  fail "the Docker engine does not come up" "see $CACHE/dockerd.log"
}

go_toolchain() { # Go itself, where there is none or an older one: the module proxy serves it too
  local at=golang.org/toolchain@v0.0.1-go$GO.linux-amd64 zip=$CACHE/go.zip proxy=${GOPROXY:-https://proxy.golang.org} have
  export GOTOOLCHAIN=local
  have=$(go env GOVERSION 2> /dev/null || true)
  [ "$(printf '%s\n' "go$GO" "$have" | sort -V | head -n 1)" = "go$GO" ] && return
  say "downloading Go $GO"
  curl --silent --show-error --fail --location --output "$zip" "${proxy%%[,|]*}/golang.org/toolchain/@v/${at#*@}.zip"
  echo "$GO_SHA256  $zip" | sha256sum --check --quiet || fail "Go's archive is not the one that is pinned" "rm $zip"
  python3 -m zipfile -e "$zip" "$CACHE"
  rm "$zip"
  chmod -R +x "$CACHE/$at/bin" "$CACHE/$at/pkg/tool"
  ln -sf "$CACHE/$at/bin/go" "$BIN/go"
}

source_of() { # what the programs of a module are built from: what go.sum pins, and our own lines
  cat "$HERE/tools/$1/go.sum"
  find "$HERE/tools/$1" -name '*.go' -print0 | sort -z | xargs -0r cat
}

go_programs() { # build the programs of each of these modules, unless they were built from the same source
  local module
  for module in "$@"; do
    programs_are_there "$module" && cmp --silent <(source_of "$module") "$CACHE/$module.built" && continue
    go_toolchain
    say "go build: $module"
    go_build "$module"
    source_of "$module" > "$CACHE/$module.built"
  done
}

programs_of() {
  case $1 in
    kubernetes) echo kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl ;;
    *) echo "$1" ;;
  esac
}

programs_are_there() {
  local program
  for program in $(programs_of "$1"); do
    [ -x "$BIN/$program" ] || return 1
  done
}

go_build() {
  local flags='-s -w' key
  if [ "$1" = kubernetes ]; then # kubeadm refuses to work with programs that do not know their version
    for key in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $key.gitVersion=$KUBERNETES -X $key.gitMajor=1 -X $key.gitMinor=34"
    done
  fi
  (
    cd "$HERE/tools/$1" || exit
    # Compilers that collect garbage less often take a sixth less time; the limit keeps two of them within any machine.
    export CGO_ENABLED=0 GOBIN=$BIN GOGC=400 GOMEMLIMIT=6GiB
    if [ -e main.go ]; then go build -ldflags "$flags" -o "$BIN/$1" .; else go install -ldflags "$flags" tool; fi
  )
}
