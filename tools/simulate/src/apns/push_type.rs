//! Push types and their requirements on topic, priority and payload.

/// `apns-push-type` ("Sending notification requests to APNs").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushType {
    Alert,
    Background,
    Complication,
    Controls,
    FileProvider,
    LiveActivity,
    Location,
    Mdm,
    PushToTalk,
    Voip,
    Widgets,
}

impl PushType {
    pub(crate) fn parse(text: &[u8]) -> Option<PushType> {
        Some(match text {
            b"alert" => PushType::Alert,
            b"background" => PushType::Background,
            b"complication" => PushType::Complication,
            b"controls" => PushType::Controls,
            b"fileprovider" => PushType::FileProvider,
            b"liveactivity" => PushType::LiveActivity,
            b"location" => PushType::Location,
            b"mdm" => PushType::Mdm,
            b"pushtotalk" => PushType::PushToTalk,
            b"voip" => PushType::Voip,
            b"widgets" => PushType::Widgets,
            _ => return None,
        })
    }

    /// Returns the suffix that the topic has after the bundle id.
    fn topic_suffix(self) -> Option<&'static str> {
        Some(match self {
            PushType::Complication => ".complication",
            PushType::Controls => ".push-type.controls",
            PushType::FileProvider => ".pushkit.fileprovider",
            PushType::LiveActivity => ".push-type.liveactivity",
            PushType::Location => ".location-query",
            PushType::PushToTalk => ".voip-ptt",
            PushType::Voip => ".voip",
            PushType::Widgets => ".push-type.widgets",
            PushType::Alert | PushType::Background | PushType::Mdm => return None,
        })
    }

    /// Returns whether `topic` fits this type.
    pub(crate) fn fits_topic(self, topic: &str) -> bool {
        match self.topic_suffix() {
            Some(suffix) => topic.len() > suffix.len() && topic.ends_with(suffix),
            None => ![".voip", ".push-type.liveactivity", ".voip-ptt", ".location-query"]
                .iter()
                .any(|suffix| topic.ends_with(suffix)),
        }
    }

    /// Returns whether `priority` is allowed. Background pushes may not have priority 10.
    pub(crate) fn allows_priority(self, priority: u8) -> bool {
        self != PushType::Background || priority < 10
    }

    /// Returns the maximum size of the payload in bytes.
    pub(crate) fn payload_bytes_max(self) -> usize {
        if self == PushType::Voip { 5_120 } else { 4_096 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_carries_the_suffix_of_its_push_type() {
        assert!(PushType::Voip.fits_topic("com.example.app.voip"));
        assert!(!PushType::Voip.fits_topic("com.example.app"));
        assert!(!PushType::Voip.fits_topic(".voip"));
        assert!(PushType::Alert.fits_topic("com.example.app"));
        assert!(!PushType::Alert.fits_topic("com.example.app.push-type.liveactivity"));
        assert!(PushType::LiveActivity.fits_topic("com.example.app.push-type.liveactivity"));
    }
}
