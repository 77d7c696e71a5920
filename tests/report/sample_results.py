"""Made-up results in the shape of result.json, for the tests of plots and pages."""

import math

KINDS = ("raspberry-pi-3b", "raspberry-pi-4", "jetson-nano", "phone-mid", "laptop", "phone-low")


def curve(end_seconds, final, *, points=20, start=0.1):
    return [
        {
            "seconds": end_seconds * i / (points - 1),
            "round": i,
            "accuracy": final - (final - start) * math.exp(-4.5 * i / (points - 1)),
            "loss": 2.3 * math.exp(-3 * i / (points - 1)),
        }
        for i in range(points)
    ]


def device(i, *, kind=None, seconds=180.0, devices=5):
    kind = kind or KINDS[i % len(KINDS)]
    busy = seconds * (0.95, 0.5, 0.2, 0.4, 0.1, 0.8)[i % 6]
    return {
        "name": f"{kind}-{i}",
        "kind": kind,
        "accuracy": 0.93 + 0.008 * (i % 6),
        "accuracy_alone": 0.80 + 0.028 * (i % 5),
        "parameters": 61_706 * (1 + i % 3),
        "flops": 4.2e9 * (i + 1),
        "examples": 1437 // devices,
        "bytes_sent": 2_400_000 * (1 + i % 3),
        "bytes_received": 2_900_000 * (1 + i % 3),
        "busy_seconds": busy,
        "waiting_seconds": seconds - busy,
        "energy_joules": 3.2 * busy * (1 + 6 * (i % 3)),
        "memory_bytes": 18_000_000 * (1 + i % 3),
        "share": (1 + i % 4) / 12,
        "size": None,
        "lost_at_seconds": None,
        "hand": "member",
        "curve": curve(seconds, 0.92 + 0.008 * (i % 6), start=0.1 + 0.03 * (i % 5)),
    }


def by_score(entry):
    """The same result, device or point judged by score: what was 90 % is a reward of 40."""
    scores = {
        key.replace("accuracy", "score"): 100 * value - 50
        for key, value in entry.items()
        if key in ("accuracy", "accuracy_alone") and value is not None
    }
    nested = {key: [by_score(part) for part in entry[key]] for key in ("curve", "devices") if key in entry}
    nulls = {"accuracy": None, "score": None}
    alone = {"accuracy_alone": None, "score_alone": None} if "accuracy_alone" in entry else {}
    marked = {"measure": "score"} if "schema" in entry else {}
    if entry.get("baseline"):
        nested["baseline"] = by_score(entry["baseline"])
    return {**entry, **nulls, **alone, **nested, **scores, **marked}


def make_result(n=5, *, seconds=180.0, topology="star"):
    devices = [device(i, seconds=seconds, devices=n) for i in range(n)]
    names = [entry["name"] for entry in devices]
    if topology == "star":
        edges = [[names[0], name] for name in names[1:]]
    else:
        edges = [[name, names[(i + 1) % n]] for i, name in enumerate(names)]
    return {
        "schema": 1,
        "job": "quick start",
        "hash": "3f9a1c",
        "seed": 0,
        "engine": "simulate",
        "split": "homogeneous",
        "seconds": seconds,
        "wall_seconds": 12.4,
        "rounds": 20,
        "merges": 20,
        "accuracy": 0.951,
        "curve": curve(seconds, 0.951),
        "devices": devices,
        "topology": {"nodes": names, "edges": edges, "coordinator": names[0]},
        "events": [
            {"seconds": 41.5, "device": names[-1], "event": "crash", "detail": "restarted after 10 s"},
            {"seconds": 77.0, "device": names[0], "event": "refused", "detail": "update holds a NaN"},
        ],
        "baseline": {"split": "isolated", "curve": curve(seconds, 0.87)},
    }
