"""Where each address is answered. Everything but Django's own lives in ``chat/transports``."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

from chat.transports import health, pages
from chat.transports.api import api
from chat.transports.limits import counted_sign_in
from coordination.admin import dashboard

# What is refused before any view is found: JSON below /api/, pages elsewhere.
handler400 = "chat.transports.errors.handler400"
handler404 = "chat.transports.errors.handler404"
handler500 = "chat.transports.errors.handler500"

urlpatterns = [
    path("admin/login/", counted_sign_in(admin.site.login)),
    path("admin/", admin.site.admin_view(dashboard.index)),
    path("admin/dashboard/", admin.site.admin_view(dashboard.fragment), name="admin_dashboard"),
    path("admin/", admin.site.urls),
    path(
        "accounts/login/",
        counted_sign_in(LoginView.as_view(redirect_authenticated_user=True)),
        name="login",
    ),
    path("accounts/logout/", LogoutView.as_view(), name="logout"),
    path("api/", api.urls),
    path("", include(health)),
    path("", include(pages)),
]
