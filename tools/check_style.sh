#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Text rules that need no parser: SPDX line, UTF-8, no tabs or trailing blanks in C, lines up to 120 columns, files up to 600
# lines ("style: long" with a reason in the first five lines allows more), functions up to 60, no output or exit in the
# library; and clang-format's, where .venv has it. Closes with the number of lines per folder.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
complain() {
    echo "$1"
    bad=1
}
folders=()
for folder in include core importer ops inverses passes executor api data cli examples bench tests/unit tests/conform tests/fuzz tests/passes; do
    [ -d "$folder" ] && folders+=("$folder")
done

mapfile -t files < <(find "${folders[@]}" -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.py' \) | sort)
awk '
    function complain(text) { print FILENAME text; bad = 1 }
    FNR == 1 { long = 0 }
    FNR == 1 && !/SPDX-License-Identifier: Apache-2.0/ { complain(":1: no SPDX line") }
    FILENAME ~ /\.py$/ { nextfile }
    FNR <= 5 && /style: long/ { long = 1 }
    /\t/ { complain(":" FNR ": tab") }
    / $/ { complain(":" FNR ": blanks at the end") }
    /(^|[^[:alnum:]_])(inv|INV)__/ { complain(":" FNR ": a name with two underscores; api/invonnx.map says what is public") }
    length > 120 { complain(":" FNR ": " length " columns") }
    FNR == 601 && !long { complain(": more than 600 lines") }
    # A function begins with its first line in column 1 and ends with the next brace there.
    /^[A-Za-z_].*[(]/ && !/;$/ { first = FNR; name = $0; open = 0 }
    /^[{]/ { open = 1 }
    first && !open && /;$/ { first = 0 } # a declaration
    /^}/ && first {
        if (FNR - first >= 60) { complain(":" first ": " FNR - first + 1 " lines, at most 60: " name) }
        first = 0
    }
    END { exit bad }' "${files[@]}" || bad=1
find "${folders[@]}" -type f -empty -printf '%p: empty\n' | grep . && bad=1
mapfile -t c_files < <(printf '%s\n' "${files[@]}" | grep -v '\.py$')
LC_ALL=C.UTF-8 grep -naxv '.*' "${c_files[@]}" /dev/null && complain "not UTF-8 (lines above)"
if [ -n "$(tail -qc 1 "${c_files[@]}" | tr -d '\n' | tr '\0' '?')" ]; then
    for file in "${c_files[@]}"; do
        [ -z "$(tail -c 1 "$file")" ] || complain "$file: no newline at the end"
    done
fi

library=()
for folder in core importer ops inverses passes executor api; do
    [ -d "$folder" ] && library+=("$folder")
done
if grep -rnE --include='*.c' --include='*.h' --include='*.inc' \
    '(^|[^_[:alnum:]])(printf|puts|putchar|perror|exit|_exit|abort|fprintf *\( *std(out|err))[[:space:]]*\(?' "${library[@]}" |
    grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)' | grep -E '(printf|puts|putchar|perror|exit|abort)[[:space:]]*\('; then
    complain "the library must not print or exit (lines above)"
fi

if [ -x .venv/bin/clang-format ]; then
    printf '%s\n' "${files[@]}" | grep '\.[ch]$' |
        xargs -d '\n' -P "$(nproc)" -n 32 .venv/bin/clang-format --dry-run --Werror || bad=1
else
    echo "style: clang-format was not asked; tools/setup.sh makes .venv with it"
fi
for folder in "${folders[@]}"; do
    printf '%7d lines  %s\n' \
        "$(find "$folder" -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' \) -exec cat {} + | wc -l)" "$folder"
done
[ $bad -eq 0 ] && echo "style: clean"
exit $bad
