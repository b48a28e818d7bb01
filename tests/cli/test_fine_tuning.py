# SPDX-License-Identifier: Apache-2.0
"""docs/fine-tuning.md, followed to the letter."""
import os
import subprocess
import sys
import unittest

from common import EXAMPLES, PROGRAM, ROOT, InFolder


class Page(InFolder):
    def test_page(self):
        os.symlink(os.path.abspath(PROGRAM), self.at("invonnx"))
        path = os.pathsep.join([self.folder.name, os.path.dirname(sys.executable), os.environ["PATH"]])
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "docs.py"), "--in", EXAMPLES,
                               os.path.join(ROOT, "docs", "fine-tuning.md")], env={**os.environ, "PATH": path},
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
