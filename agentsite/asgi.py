"""A web node: ``daphne agentsite.asgi:application`` (or uvicorn). It holds no state."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentsite.settings")
http = get_asgi_application()  # loads the apps: what follows imports their models

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import OriginValidator  # noqa: E402
from django.conf import settings  # noqa: E402

from chat.transports.websocket import urlpatterns  # noqa: E402


class BrowserOriginValidator(OriginValidator):  # type: ignore[misc]
    """Another site's page may not use a visitor's cookie.

    Browsers always name their origin. A program with a token has none, and no cookie to steal.
    """

    def valid_origin(self, parsed_origin: Any) -> bool:
        return parsed_origin is None or bool(self.validate_origin(parsed_origin))


application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": BrowserOriginValidator(
            AuthMiddlewareStack(URLRouter(urlpatterns)), settings.ALLOWED_HOSTS
        ),
    }
)
