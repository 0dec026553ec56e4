def make_executor(setup, link, device):
    from logitport_server.executors.inline import InlineExecutor
    from logitport_server.registry.loader import Loader
    return InlineExecutor(Loader(128))
