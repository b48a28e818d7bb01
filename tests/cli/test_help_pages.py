# SPDX-License-Identifier: Apache-2.0
"""What the program says of itself: --help, manual pages, completions in the shells that are there, colours, and lines that
fit a terminal. Fails if a page has an option that the program lacks or lacks one, if man or a shell complains of a file, if
a completion offers what the command would refuse, if codes of colours get into a pipe, or lines are wider than 80 columns."""
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

import common

try:
    import fcntl
    import pty
    import termios
except ImportError:
    pty = None

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
PAGES = os.path.join(os.environ.get("INVONNX_BUILD", os.path.join(HERE, "../../build/dev")), "pages")


def listed():
    """The commands, as --help has them."""
    return re.findall(r"(?m)^  ([a-z]+) ", common.call("--help")[1])


def options_of(command):
    return set(re.findall(r"(?m)^  (?:-\w, )?--([a-z0-9-]+)", common.call("help", command)[1]))


def terminal(args, columns=80, **environment):
    """What a terminal is shown, both streams, without the line that tells progress."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **environment}
    child = subprocess.Popen([common.PROGRAM, *args], stdout=its, stderr=its, env=env)
    os.close(its)
    text = b""
    while True:
        try:
            more = os.read(mine, 1 << 16)
        except OSError:
            break
        if not more:
            break
        text += more
    os.close(mine)
    child.wait()
    return re.sub(r"\r[^\r\n]*\x1b\[K", "", text.decode()).replace("\r", "")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = cls.holder.name
        subprocess.run([common.PROGRAM, "--write-pages", cls.folder], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            return f.read()

    def test_help(self):
        """Ten options at most come first, each once, and all fits 80 columns."""
        self.assertGreater(len(listed()), 10)
        for command in [None, *listed()]:
            status, out, err = common.call("help", *([command] if command else []))
            self.assertEqual((status, err), (0, ""))
            self.assertLess(max(map(len, out.splitlines())), 80, command)
            if not command:
                continue
            names = re.findall(r"(?m)^  (?:-\w, )?--([a-z0-9-]+)", out)
            self.assertEqual(len(names), len(set(names)), command)
            first = re.search(r"(?ms)^Used most\n(.*?)^$", out)
            if first:
                self.assertLessEqual(len(re.findall(r"(?m)^  (?:-\w, )?--", first[1])), 10, command)
            self.assertEqual(common.call(command, "--help"), (0, out, ""))
            repeated = set(re.findall(r"--([a-z0-9-]+)", re.search(r"(?s)May\s+be\s+repeated:(.*?)\.\n", out)[1]))
            self.assertLessEqual(repeated, set(names), command)
            self.assertFalse(repeated & {"target", "logdet", "with-logdet", "target-column", "json"}, command)
            self.assertLessEqual({"plugin", "options"} | set(names) & {"data", "metric", "keep", "group"}, repeated)
            self.assertEqual("GLOB that" in out, "GLOB" in out.replace("GLOB that", ""), command)
            for line in re.search(r"(?s)\nExample\n(.*)", out)[1].splitlines()[1:]:
                self.assertRegex(line, r"^ +-", command)  # an option and its value stand in one line
        train = common.call("help", "train")[1]
        self.assertLess(train.index("--data "), train.index("--val-data "))
        self.assertRegex(train, r"(?m)^Used most$(.|\n)*^Data$(.|\n)*^Memory$")

    def test_reference(self):
        """docs/cli.md is what the program writes: `invonnx --write-pages FOLDER`, and copy FOLDER/cli.md to docs/."""
        with open(os.path.join(common.ROOT, "docs", "cli.md"), encoding="utf-8") as f:
            self.assertEqual(f.read(), self.read("cli.md"), "run `invonnx --write-pages FOLDER`, copy cli.md to docs/")

    def test_manual(self):
        """A page per command, with all its options; the ones of the build are these."""
        names = ["invonnx.1", *(f"invonnx-{command}.1" for command in listed())]
        self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.endswith(".1")), sorted(names))
        for command in listed():
            text = self.read(f"invonnx-{command}.1")
            found = {name.replace("\\-", "-") for name in re.findall(r"\\fB\\-\\-([a-z0-9\\-]+)\\fR", text)}
            self.assertEqual(found, options_of(command), command)
        for name in os.listdir(self.folder) if os.path.isdir(PAGES) else []:
            with open(os.path.join(PAGES, name), encoding="utf-8") as f:
                self.assertEqual(f.read(), self.read(name), name)
        if not shutil.which("man"):
            self.skipTest("no man")
        for name in names:
            man = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", os.path.join(self.folder, name)], text=True,
                                 capture_output=True, env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
            self.assertEqual((man.returncode, man.stderr), (0, ""), name)
            self.assertLessEqual(max(map(len, man.stdout.splitlines())), 80)

    def test_bash(self):
        cases = [(["tr"], "train"), (["help", "pla"], "plan"), (["train", "--loss", "m"], "mse"),
                 (["train", "--loss", "=", "m"], "mse"), (["plan", "--loss", "="], "cross_entropy mse bce huber nll output"),
                 (["train", "mo"], "model.onnx"), (["train", "--data", "x", "=", "ro"], "rows.npy"),
                 (["adapter", ""], "merge extract show"), (["train", "--checkpoint", ""], "a folder"),
                 (["train", "--lr", ""], ""), (["plan", "--mode", "i"], ""), (["plan", "--device", "c"], "cpu cuda checked"),
                 (["inspect", "--no"], "--no-rules"), (["train", "--data", "ro"], "rows.npy")]
        lines = ["compopt() { :; }", f"source {self.folder}/invonnx.bash",
                 'try() { COMP_WORDS=(invonnx "$@"); COMP_CWORD=$#; _invonnx; echo "${COMPREPLY[*]}"; }']
        lines += ["try " + " ".join(f"'{word}'" for word in words) for words, _ in cases]
        lines += [f"try {command} --" for command in listed()]
        with tempfile.TemporaryDirectory() as folder:
            for name in ("model.onnx", "rows.npy"):
                open(os.path.join(folder, name), "w", encoding="utf-8").close()
            os.mkdir(os.path.join(folder, "a folder"))
            bash = subprocess.run(["bash", "-u", "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True)
        self.assertEqual(bash.stderr, "")
        results = bash.stdout.splitlines()
        for (words, wanted), got in zip(cases, results):
            self.assertEqual(got, wanted, words)
        for command, got in zip(listed(), results[len(cases):]):
            self.assertEqual({word[2:] for word in got.split()}, options_of(command), command)

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        # What _arguments is given for each command; it would complain of what it cannot read only when Tab is pressed.
        script = f"""_arguments() {{ print -rl -- $words[1] "$@" }}; _describe() {{ print -l -- $commands }}
            words=(invonnx '') CURRENT=2; source {self.folder}/_invonnx
            for c in {' '.join(listed())}; do words=(invonnx $c ''); CURRENT=3; _invonnx; done"""
        zsh = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True)
        self.assertEqual((zsh.returncode, zsh.stderr), (0, ""))
        self.assertEqual(re.findall(r"(?m)^([a-z]+):", zsh.stdout)[:-1], listed())
        seen = re.split(r"(?m)^([a-z]+)$", zsh.stdout)
        for command, specs in zip(seen[1::2], seen[2::2]):
            names = set(re.findall(r"(?m)^(?:\*|\(-\w --[a-z-]+\))?--([a-z0-9-]+)=?\[(?:[^][\\]|\\.)*\]", specs))
            self.assertEqual(names, options_of(command), command)

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("no fish")
        script = f"source {self.folder}/invonnx.fish; complete -C 'invonnx trai'; complete -C 'invonnx train --loss m'"
        script += "; complete -C 'invonnx adapter '; complete -C 'invonnx adapter merge mo'"
        for command in listed():
            script += f"; echo = {command}; complete -C 'invonnx {command} --'"
        with tempfile.TemporaryDirectory() as home:
            open(os.path.join(home, "model.onnx"), "w", encoding="utf-8").close()
            fish = subprocess.run(["fish", "--no-config", "-c", script], cwd=home, capture_output=True, text=True,
                                  env={**os.environ, "HOME": home})
        self.assertEqual((fish.returncode, fish.stderr), (0, ""))
        seen = re.split(r"(?m)^= ([a-z]+)$", fish.stdout)
        self.assertEqual(re.findall(r"(?m)^[\w.]+", seen[0]), ["train", "mse", "extract", "merge", "show", "model.onnx"])
        for command, found in zip(seen[1::2], seen[2::2]):
            self.assertEqual(set(re.findall(r"(?m)^--([a-z0-9-]+)", found)), options_of(command), command)

    @unittest.skipUnless(pty, "no terminals here")
    def test_colours(self):
        self.assertIn("\x1b[1mUsed most\x1b[0m\n", terminal(["help", "plan"]))
        self.assertRegex(terminal(["plan"]), r"^\x1b\[1;31minvonnx:\x1b\[0m ")
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b", terminal(["help", "plan"], **environment) + terminal(["plan"], **environment))
        self.assertIn("\x1b", terminal(["plan"], NO_COLOR=""))
        _, out, err = common.call("plan")
        self.assertNotIn("\x1b", out + err + common.call("help", "plan")[1])

    @unittest.skipUnless(pty, "no terminals here")
    def test_lines_fit_the_terminal(self):
        """Broken at blanks only, so that the words are those of a pipe; what cannot be broken is left as it is."""
        session = ["--loss", "mse", "--batch", "8"]
        quiet = [MODEL, *session, "--quiet"]  # no progress, which is shown after a second only
        for args in (["inspect", MODEL], ["explain", MODEL, *session], ["plan", *quiet], ["rules"], ["ops"],
                     ["plan", *quiet, "--budget", "1KiB"], ["train", MODEL, *session, "-o", "/nowhere/x"]):
            _, out, err = common.call(*args)
            for columns in (80, 50):
                shown = terminal(args, columns, NO_COLOR="1")
                plain = [re.sub(r"[\d.]+", "#", text).split() for text in (shown, out + err)]  # some is measured
                self.assertEqual(*plain, args)
                for line in shown.splitlines():
                    self.assertTrue(len(line) < columns or len(line.split()) == 1, line)
        self.assertGreater(max(map(len, common.call("ops")[1].splitlines())), 100)  # a line is a line in a pipe

    def test_failures_are_objects(self):
        for args, status in ((["plan"], 2), (["nosuch"], 2), (["plan", MODEL, "--nosuch"], 2),
                             (["inspect", "absent.onnx"], 1), (["plan", MODEL, "--loss", "mse", "--budget", "1KiB"], 1)):
            code, out, _ = common.call(*args, "--json")
            got = json.loads(out)
            self.assertEqual((code, got["status"]), (status, status), args)
            self.assertTrue(got["error"], args)


if __name__ == "__main__":
    unittest.main()
