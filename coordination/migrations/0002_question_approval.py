"""A question may be about a tool call, which is made once after a yes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="question", name="approval", field=models.JSONField(null=True)
        ),
        migrations.AddField(
            model_name="question", name="taken_up_at", field=models.DateTimeField(null=True)
        ),
    ]
