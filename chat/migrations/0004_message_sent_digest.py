from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("chat", "0003_message_status_removed"),
    ]

    operations = [
        migrations.AddField(
            model_name="message",
            name="sent_digest",
            field=models.CharField(blank=True, max_length=64),
        ),
    ]
