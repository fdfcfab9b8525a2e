"""Django's settings, all of them from the environment (``agentsite/environment.py``).

A site is served over https if one of its trusted origins says so; then cookies are secure, http is
redirected and the proxy's ``X-Forwarded-Proto`` is believed. ``serve`` and ``cluster`` speak plain
http on loopback, and have none.
"""

from typing import Any

from agentsite import logs
from agentsite.databases import database
from agentsite.environment import BASE_DIR, SiteEnvironment

env = SiteEnvironment.read()

SECRET_KEY = env.django_secret_key
DEBUG = env.django_debug
# Loopback names are always answered: health probes and the machine's own commands use them, and
# nobody can be lured to one from outside.
ALLOWED_HOSTS = [*env.django_allowed_hosts, "localhost", "127.0.0.1", "[::1]"]
CSRF_TRUSTED_ORIGINS = list(env.django_csrf_trusted_origins)
TRUSTED_PROXIES = env.django_trusted_proxies  # for chat/transports/limits.py

VAR_DIR = env.agentsite_var
AGENT_MODEL = env.agent_model
AGENT_MCP_SERVERS = env.agent_mcp_servers  # by name; what each is: chat/mcp_servers.py

INSTALLED_APPS = [
    # First, as it replaces runserver. A worker serves nothing, and its runners start the sooner
    # without Twisted.
    *(["daphne"] if env.agentsite_role == "web" else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "ninja",  # for the scripts of /api/docs, which would come from elsewhere
    "coordination",
    "chat",
    "agentsite",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "chat.transports.csp.content_security_policy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "agentsite.urls"
ASGI_APPLICATION = "agentsite.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- Rows: what decides -------------------------------------------------------------------------

DATABASES = {"default": database(env)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Redis: what hurries ------------------------------------------------------------------------

REDIS_URLS = list(env.redis_url)

# A connection that listens may be silent for hours, so it gets no socket timeout (redis-py 8 has
# one of 5 s by default); the health check finds the dead ones instead.
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [
                {"address": url, "socket_timeout": None, "health_check_interval": 15}
                for url in REDIS_URLS
            ],
            "prefix": "agentsite",
        },
    }
    if REDIS_URLS
    # No Redis: no hints between processes, everything goes by its poll. `doctor` says so.
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}

CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
if REDIS_URLS:
    # Only the connection is used (`get_redis_connection("leases")`; the rate limits use it, too),
    # never the cache's own calls: to a cache an outage looks like "absent", and absent is a verdict
    # here.
    CACHES["leases"] = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URLS[0],
        "OPTIONS": {
            "IGNORE_EXCEPTIONS": False,
            "SOCKET_CONNECT_TIMEOUT": 1,
            "SOCKET_TIMEOUT": 1,
        },
    }

# --- People -------------------------------------------------------------------------------------

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

HTTPS = any(origin.startswith("https://") for origin in CSRF_TRUSTED_ORIGINS)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
# Probes come straight to the node, past the proxy.
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
X_FRAME_OPTIONS = "DENY"

# A message may have 1 MiB of text, and JSON may write each byte of it as six.
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024

# --- Words, times, files ------------------------------------------------------------------------

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]

STATIC_URL = "/static/"
# Files are served from where they lie, so there is no collectstatic step to forget; modules import
# each other by plain names, so a browser must ask each time whether it has the newest.
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 0

LOGGING = logs.configuration("DEBUG" if DEBUG else "INFO")
logs.configure()
