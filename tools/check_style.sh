#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Text rules that need no parser: SPDX line, UTF-8, no tabs or trailing blanks in C, lines up to 120 columns, files up to 600
# lines ("style: long" with a reason in the first five lines allows more), no output or exit in the library.
# Closes with the number of lines per folder. With --format also asks clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() {
    echo "$1"
    bad=1
}
folders=()
for folder in include core importer ops inverses passes executor cli examples bench tests/unit tests/conform tests/fault tests/fuzz; do
    [ -d "$folder" ] && folders+=("$folder")
done

while IFS= read -r file; do
    head -n 1 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || complain "$file:1: no SPDX line"
    case "$file" in
    *.py) continue ;;
    esac
    grep -nP '\t' "$file" | sed "s|^\([0-9]*\):.*|$file:\1: tab|" | grep . && bad=1
    grep -nE ' +$' "$file" | sed "s|^\([0-9]*\):.*|$file:\1: blanks at the end|" | grep . && bad=1
    awk -v f="$file" 'length > 120 { print f ":" FNR ": " length " columns"; n++ } END { exit n > 0 }' "$file" || bad=1
    iconv -f UTF-8 -t UTF-8 "$file" >/dev/null 2>&1 || complain "$file: not UTF-8"
    [ -z "$(tail -c 1 "$file")" ] || complain "$file: no newline at the end"
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 600 ] && ! head -n 5 "$file" | grep -q 'style: long'; then
        complain "$file: $lines lines"
    fi
done < <(find "${folders[@]}" -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.py' \) | sort)

library=()
for folder in core importer ops inverses passes executor; do
    [ -d "$folder" ] && library+=("$folder")
done
if grep -rnE --include='*.c' --include='*.h' --include='*.inc' \
    '(^|[^_[:alnum:]])(printf|puts|putchar|perror|exit|_exit|abort|fprintf *\( *std(out|err))[[:space:]]*\(?' "${library[@]}" |
    grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)' | grep -E '(printf|puts|putchar|perror|exit|abort)[[:space:]]*\('; then
    complain "the library must not print or exit (lines above)"
fi

if [ "${1:-}" = --format ]; then
    find "${folders[@]}" -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run --Werror || bad=1
fi
for folder in "${folders[@]}"; do
    printf '%7d lines  %s\n' \
        "$(find "$folder" -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' \) -exec cat {} + | wc -l)" "$folder"
done
[ $bad -eq 0 ] && echo "style: clean"
exit $bad
