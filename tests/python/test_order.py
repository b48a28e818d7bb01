# SPDX-License-Identifier: Apache-2.0
"""Models, trainers, plans and views end in any order: in cycles, at exit, in threads, in a child of fork(). Each runs in
a process of its own, in which freed memory is overwritten (MALLOC_PERTURB_). Fails if one crashes, hangs, or changes a view
whose trainer has gone."""
import os
import subprocess
import sys
import unittest

from test_package import REVNET

HEAD = f'''
import atexit, gc, itertools, os, signal, sys, threading, time, numpy as np, invonnx
r = np.random.default_rng(0)
X, Y = r.random((4, 1, 8, 8), dtype=np.float32), r.integers(0, 10, 4)
def make(**options):
    m = invonnx.load({REVNET!r}, progress=options.pop("progress", None))
    t = m.trainer(**{{"loss": "cross_entropy", "optimizer": "adam", "threads": 1, "memory": "store", "cost": "flops", **options}})
    t.step(X, Y)
    return m, t
def same(view, before): assert view.tobytes() == before, "a view has changed"
'''
CASES = {
    "cycle": "for _ in range(5):\n  m, t = make(); t.me = t; m.t = t; t.callbacks.append(lambda a, b: t.lr and None); del m, t; gc.collect()",
    "plan in a cycle": "for _ in range(3):\n  m, t = make(); p = m.plan(loss='cross_entropy', batch=2, cost='flops'); p.me = [p, t]; del m, t, p; gc.collect()",
    "reversed model": "m, t = make(); f = invonnx.load({flow!r}); b = f.reverse(logdet=list(f.outputs)[1]); b.me = b; del f, b, m, t; gc.collect()",
    "alive at exit": "m, t = make(); p = t.parameters['stem.weight']; f = lambda: (m, t, p)",
    "alive at exit, in a cycle": "m, t = make(); t.me = m.t = t; g = t.parameters; v = g['stem.weight']",
    "used at exit": "m, t = make()\natexit.register(lambda: t.step(X, Y))",
    "used in __del__ at exit": "m, t = make()\nclass C:\n  def __del__(self): same(v, b)\nv = t.parameters['stem.weight']; b = v.tobytes(); c = C(); c.c = c; del m, t",
    "views after their trainer": '''
m, t = make(accumulate=True); t.accumulate(X, Y)
views = [t.parameters["stem.weight"], t.optimizer_state["stem.weight/moment1"], t.gradients()["stem.weight"]]
before = [v.tobytes() for v in views]; inner = views[0][1:, 0].reshape(-1)[::2]; i = inner.tobytes()
del m, t; gc.collect()
junk = [np.full(n, 7.0) for n in range(1, 3000, 7)]
for v, b in zip(views, before): same(v, b)
del views, v; gc.collect(); same(inner, i)''',
    "outputs after their trainer": '''
m, t = make(); t.evaluate(X, Y); o = t.outputs(); v = o["logits"]; b = v.tobytes(); del m, t; gc.collect(); same(v, b); same(o["logits"], b)''',
    "a thread has the last of it": '''
m, t = make()
def run(t):
    for _ in range(5): t.step(X, Y)
th = threading.Thread(target=run, args=(t,)); th.start(); del m, t; th.join(); gc.collect()''',
    "threads let go meanwhile": '''
m, t = make()
def others():
    for _ in range(3):
        o = m.trainer(loss="cross_entropy", optimizer="sgd", threads=1, memory="store", cost="flops"); o.step(X, Y); o.me = o
        del o; gc.collect()
ths = [threading.Thread(target=others) for _ in range(3)]
for th in ths: th.start()
for _ in range(20): t.step(X, Y)
for th in ths: th.join()''',
    "a daemon computes at exit": '''
m, t = make(memory="auto")
def run():
    while True: t.step(X, Y)
threading.Thread(target=run, daemon=True).start(); time.sleep(0.2)''',
    "a daemon searches at exit": '''
m, t = make(progress=lambda stage, share: None)
threading.Thread(target=lambda: m.plan(loss="cross_entropy", batch=64, budget="2500KiB", effort=1000), daemon=True).start(); time.sleep(0.5)''',
    "exceptions of callbacks": '''
def bad(a, b): raise LookupError
m, t = make(); t.callbacks.append(bad)
for _ in range(3):
    try: t.step(X, Y); assert False
    except LookupError as e: kept = e
del m, t; gc.collect(); del kept; gc.collect()''',
    "a callback lets go of all": '''
box = list(make()); box[1].callbacks.append(lambda a, b: box.clear()); box[1].step(X, Y); gc.collect()''',
    "progress lets go of trainers": '''
def progress(stage, share): old.clear(); gc.collect()
old = []; m, t = make(progress=progress); old += [m.trainer(loss="cross_entropy", cost="flops", threads=1)]; old[0].me = old[0]
m.plan(loss="cross_entropy", batch=8, cost="flops"); assert not old''',
    "a child that exits": '''
m, t = make(threads=2, improve=True, memory="auto", effort=10)
for _ in range(3): t.step(X, Y)
pid = os.fork()
if pid == 0: signal.alarm(30); del m, t; gc.collect(); sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0; t.step(X, Y)''',
    "a child that computes": '''
for threads in (1, 2):
    m, t = make(threads=threads)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        for use in (lambda: t.step(X, Y), lambda: make(threads=threads)):
            try: use()
            except invonnx.ArgumentError as e: assert "fork()" in str(e)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0; t.step(X, Y)''',
    "a child of a process whose thread computes": '''
m, t = make()
def run():
    while not done: t.step(X, Y)
done = []; th = threading.Thread(target=run); th.start()
for _ in range(10):
    time.sleep(0.02); pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try: t.step(X, Y)
        except (RuntimeError, invonnx.Error) as e: assert "fork()" in str(e), e
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
done.append(1); th.join()''',
}
CASES["del in every order"] = '''
for order in list(itertools.permutations(range(6)))[::31]:
    m, t = make(); p = m.plan(loss="cross_entropy", batch=2, cost="flops", threads=1)
    things = [m, t, p, t.parameters, t.parameters["stem.weight"], t.session]
    del m, t, p
    for i in order: things[i] = None
'''


class Order(unittest.TestCase):
    pass


def add(name, body):
    def test(self):
        flow = os.path.join(os.path.dirname(REVNET), "realnvp_moons.onnx")
        code = HEAD + body.replace("{flow!r}", repr(flow)) + "\nprint('came to its end')\n"
        for k in (85, 170):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                                  env={**os.environ, "MALLOC_PERTURB_": str(k), "OMP_NUM_THREADS": "2"})
            said = (done.returncode, done.stdout[-200:], done.stderr[-800:])
            self.assertEqual((done.returncode, done.stdout), (0, "came to its end\n"), said)
            self.assertNotIn("Traceback", done.stderr)

    setattr(Order, "test_" + name.replace(" ", "_").replace(",", ""), test)


for each in CASES.items():
    add(*each)

if __name__ == "__main__":
    unittest.main()
