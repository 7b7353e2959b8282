"""Horovod's Timeline, which rank 0 writes: when tensors were negotiated and reduced."""

import json

from timers import eventually


def whole_timeline(path):
    """A Timeline's text, which a thread of Horovod's still writes after it was stopped."""
    assert eventually(lambda: path.read_text().rstrip().endswith("]"))
    return path.read_text().rstrip()


def spans(text):
    """Begin and end in us of each activity, in the order of their ends: by activity and tensor."""
    names, begun, found = {}, {}, {}
    for event in json.loads(text):
        tensor = event.get("pid")
        if event.get("name") == "process_name" and "name" in event["args"]:
            names[tensor] = event["args"]["name"]
        elif event.get("ph") == "B":
            begun.setdefault(tensor, []).append(event)
        elif event.get("ph") == "E" and begun.get(tensor):
            began = begun[tensor].pop()
            own = found.setdefault(began["name"], {}).setdefault(names.get(tensor, tensor), [])
            own.append((began["ts"], event["ts"]))
    return found
