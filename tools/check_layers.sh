#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds the include directives to the layers of docs/architecture.md: what a folder may include of our own
# headers. Only importer/ may see the generated schema, only cli/ the libraries of the program.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A may=(
    [include]="include"
    [core]="include core"
    [importer]="include core importer"
    [ops]="include core ops"
    [inverses]="include inverses"
    [passes]="include core ops passes"
    [executor]="include core ops executor"
    [cli]="include cli"
    [examples]="include"
)
# The one seam upwards: the public entry points drive the whole pipeline.
# FILE:FOLDER pairs that are allowed, with the reason beside them.
exceptions=(
    executor/api.c:passes     # inv_session_create compiles
    executor/api.c:importer   # inv_model_load, inv_model_save
    executor/api.c:inverses   # inv_context_create registers the built-in rules
    # The list of the built-in sets; the rule files themselves see plugin.h only.
    inverses/builtin.c:core
    inverses/builtin.c:ops
    inverses/builtin.c:passes
)

bad=0
complain() {
    echo "$1"
    bad=1
}

allowed() { # file, folder included
    local e
    for e in "${exceptions[@]}"; do
        [ "$e" = "$1:$2" ] && return 0
    done
    return 1
}

for folder in "${!may[@]}"; do
    [ -d "$folder" ] || continue
    while IFS=: read -r file line text; do
        [[ $text =~ \#[[:space:]]*include[[:space:]]*[\"\<]([^\"\>]*)[\"\>] ]] || continue # what a macro names
        header=${BASH_REMATCH[1]}
        case "$header" in
        invonnx/*) target=include ;;
        core/* | importer/* | ops/* | inverses/* | passes/* | executor/* | cli/*) target=${header%%/*} ;;
        onnx.pb-c.h | protobuf-c/*)
            [ "$folder" = importer ] || complain "$file:$line: only importer/ may include $header"
            continue
            ;;
        popt.h | unzip.h | zip.h | minizip/*)
            [ "$folder" = cli ] || complain "$file:$line: only cli/ may include $header"
            continue
            ;;
        cblas.h | lapacke.h)
            [ "$folder" = ops ] || complain "$file:$line: only ops/ may include $header"
            continue
            ;;
        */*) continue ;; # a system header
        *)
            # No folder: a neighbour, or a system header.
            [ -e "${file%/*}/$header" ] || continue
            target=$folder
            ;;
        esac
        case " ${may[$folder]} " in
        *" $target "*) ;;
        *) allowed "$file" "$target" || complain "$file:$line: $folder/ must not include $header" ;;
        esac
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include' "$folder" --include='*.c' --include='*.h' --include='*.inc' \
        --include='*.cu' --include='*.cuh')
done
[ $bad -eq 0 ] && echo "layers: clean"
exit $bad
