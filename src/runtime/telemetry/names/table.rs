//! Macros that generate the code that follows from a table of metrics, or from label values.

/// Generates `as_str` for enums of label values, which derive `IntoStaticStr`.
macro_rules! label_values {
    ($($Value:ident),+) => {
        $(
            impl $Value {
                /// Returns the label value.
                #[must_use]
                pub fn as_str(self) -> &'static str {
                    self.into()
                }
            }
        )+
    };
}

/// Type of the handle for a kind of metric.
macro_rules! handle_type {
    (Counter) => {
        ::metrics::Counter
    };
    (Gauge) => {
        ::metrics::Gauge
    };
    ($histogram:ident) => {
        ::metrics::Histogram
    };
}

/// Generates an enum of metrics, and for each subject a struct with the handles of its series.
///
/// A table is the enum and its subjects; a subject is a struct with rows. The order of the rows is
/// that of the documentation. A row is
///
/// ```text
/// Variant: Kind, "name", "label, label", "Help text.";
/// ```
///
/// where `Kind` is a variant of `MetricKind`. Before the semicolon it may have, in this order:
///
/// - `, optional = true` if most processes do not use its feature, and do not expose it;
/// - `=> field` if its series exists from the start: the handle is `field` of the struct;
/// - `=> [field] of VALUES` if it has one label, whose values are known, and the series of all of
///   them exist from the start: the handles are the elements of `field`, in the order of `VALUES`.
///
/// A row without a field has series that are registered at their first use, with
/// `MetricRecorder::counter` and its siblings, because their values are not known or most of them
/// do not occur. At least one row of a subject has a field.
///
/// From the row `QueueDelay: Seconds, "delay_seconds", "", "Delay." => delay;` in the subject
/// `BatchSeries` of the enum `Metric`, the macro generates the variant `Metric::QueueDelay`, its
/// place in `Metric::ALL`, the values that `name`, `kind`, `labels` and `help` return for it, the
/// field `delay` of type `Histogram` in `BatchSeries`, and its registration in
/// `BatchSeries::register`.
macro_rules! metric_table {
    (
        $(#[$enum_attribute:meta])*
        pub enum $Metric:ident;
        $(
            $(#[$series_attribute:meta])*
            struct $Series:ident {
                $(
                    $Variant:ident: $Kind:ident, $name:literal, $labels:literal, $help:literal
                    $(, optional = $optional:literal)?
                    $(=> $field:ident)?
                    $(=> [$fields:ident] of $values:expr)?;
                )+
            }
        )+
    ) => {
        $(#[$enum_attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $Metric {
            $($(
                #[doc = concat!("`", $name, "`: ", $help)]
                $Variant,
            )+)+
        }

        impl $Metric {
            /// All metrics, in the order of the documentation.
            pub const ALL: [Self; [$($($name),+),+].len()] = [$($(Self::$Variant),+),+];

            const fn row(self) -> $crate::telemetry::kind::MetricRow {
                match self {
                    $($(
                        Self::$Variant => $crate::telemetry::kind::MetricRow {
                            name: $name,
                            kind: $crate::telemetry::kind::MetricKind::$Kind,
                            labels: $labels,
                            help: $help,
                            is_optional: false $(|| $optional)?,
                        },
                    )+)+
                }
            }

            /// Returns the name in the exposition.
            #[must_use]
            pub const fn name(self) -> &'static str {
                self.row().name
            }

            /// Returns the type of the metric.
            #[must_use]
            pub const fn kind(self) -> $crate::telemetry::kind::MetricKind {
                self.row().kind
            }

            /// Returns the label names, comma-separated.
            #[must_use]
            pub const fn labels(self) -> &'static str {
                self.row().labels
            }

            /// Returns the help text.
            #[must_use]
            pub const fn help(self) -> &'static str {
                self.row().help
            }
        }

        impl From<$Metric> for $crate::telemetry::kind::MetricRow {
            fn from(metric: $Metric) -> Self {
                metric.row()
            }
        }

        $(
            $(#[$series_attribute])*
            pub(in crate::telemetry) struct $Series {
                $(
                    $(pub(in crate::telemetry) $field: handle_type!($Kind),)?
                    $(pub(in crate::telemetry) $fields: Vec<handle_type!($Kind)>,)?
                )+
            }

            impl $Series {
                /// Registers the series.
                pub(in crate::telemetry) fn register(
                    registrar: &$crate::telemetry::series::SeriesRegistrar<'_>,
                ) -> Self {
                    Self {
                        $(
                            $($field: registrar.series($name),)?
                            $($fields: registrar.series_of($name, $labels, $values),)?
                        )+
                    }
                }
            }
        )+
    };
}
