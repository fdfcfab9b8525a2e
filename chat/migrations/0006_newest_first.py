"""The admin's lists begin with the newest rows: an index for each."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("chat", "0005_apitoken_scope"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="chatsession",
            index=models.Index(fields=["created_at"], name="chat_newest"),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(fields=["session", "position"], name="message_order"),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(fields=["created_at"], name="message_newest"),
        ),
    ]
