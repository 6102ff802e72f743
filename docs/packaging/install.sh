#!/bin/sh
# Installs Jalopy for one user: by uv or pipx where they are, else in an environment of its own.
#   sh install.sh                  from the package index
#   JALOPY_FROM=FILE sh install.sh a wheel, a folder with the sources or an address, as pip takes them
set -eu

from=${JALOPY_FROM:-jalopy}
home=${XDG_DATA_HOME:-$HOME/.local/share}/jalopy-program
bin=$HOME/.local/bin

refuse() {
    echo "jalopy: $1" >&2
    exit 1
}

if command -v uv >/dev/null 2>&1; then
    uv tool install --force "$from" || refuse "uv could not install it (its last lines say why)"
elif command -v pipx >/dev/null 2>&1; then
    pipx install --force "$from" || refuse "pipx could not install it (its last lines say why)"
else
    python=
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            python=$name
            break
        fi
    done
    [ -n "$python" ] || refuse "Python 3.10 or later with venv is needed (Debian, Ubuntu: sudo apt install python3-venv)"
    echo "Installing Jalopy into $home: about 90 MB to download, once."
    "$python" -m venv --clear "$home" || refuse "no environment could be made in $home (a full disk?)"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$from" ||
        refuse "pip could not install it (no network? a full disk? its last lines say why)"
    mkdir -p "$bin"
    ln -sf "$home/bin/jalopy" "$bin/jalopy"
fi

if command -v jalopy >/dev/null 2>&1; then
    echo "Installed. Type: jalopy"
else
    echo "Installed. Type: $bin/jalopy (or add $bin to your PATH)"
fi
