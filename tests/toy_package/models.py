from .families import AddPayload, CopyPayload


def enumerate_programs(model, *, tp, target, options):
    return (AddPayload(block=model.hidden), CopyPayload(mode=model.name))
