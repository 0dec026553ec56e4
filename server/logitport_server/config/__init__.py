"""The options of a server, each defined once: for flags, the environment, and the configuration file."""

from logitport_server.config.server_config import ServerConfig as ServerConfig
from logitport_server.config.values import Rate as Rate
