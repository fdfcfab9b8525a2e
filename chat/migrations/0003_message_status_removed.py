from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("chat", "0002_message_has_queued"),
    ]

    operations = [
        migrations.AlterField(
            model_name="message",
            name="status",
            field=models.CharField(
                choices=[
                    ("complete", "Complete"),
                    ("partial", "Partial"),
                    ("interrupted", "Interrupted"),
                    ("removed", "Removed"),
                ],
                default="complete",
                max_length=16,
            ),
        ),
    ]
