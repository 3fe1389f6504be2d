//! What has happened to pages of lower tiers.

macro_rules! tier_counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// What has happened to pages of lower tiers, in blocks of a shelf.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct TierCounters {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl TierCounters {
            /// Names and values, in a fixed order.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

tier_counters! {
    /// Completed copies from the device to the host.
    device_to_host,
    /// Completed copies from the device to disk.
    device_to_disk,
    /// Completed copies from the host to disk.
    host_to_disk,
    /// Completed copies from the host to the device.
    host_to_device,
    /// Completed copies from disk to the device.
    disk_to_device,
    /// Transfers that failed.
    failed,
    /// Offers of what lay below already.
    renewed,
    /// Offers that found no page.
    rejected,
    /// Copies given up for others that were nowhere else.
    lost,
    /// Entries that `restore` made.
    restored,
    /// Entries that `adopt` made.
    adopted,
}
