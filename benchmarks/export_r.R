# Rscript benchmarks/export_r.R FOLDER: classification data sets of R packages as CSV files, the class in the last column.
#
# Packages: mlbench, kernlab, MASS, mclust, modeldata. `python -m benchmarks.unseen --folder FOLDER` reads the files.
# Numeric columns are kept; ordered factors and factors with two levels become integers; other columns are dropped, and so
# are classes with fewer than 5 samples. Of data sets with more than 5,000 samples a random part is taken.

folder <- commandArgs(trailingOnly = TRUE)[1]
dir.create(folder, showWarnings = FALSE, recursive = TRUE)
largest <- 5000
smallest_class <- 5

load_table <- function(package, name) {
  place <- new.env()
  data(list = name, package = package, envir = place)
  as.data.frame(place[[name]])
}

numbers <- function(column) {
  if (is.numeric(column)) return(as.numeric(column))
  if (is.logical(column)) return(as.numeric(column))
  if (is.factor(column) && (is.ordered(column) || nlevels(column) == 2)) return(as.numeric(column))
  NULL
}

export <- function(package, name, label, dropped = c(), file = name) {
  table <- load_table(package, name)
  labels <- if (is.function(label)) label(table) else table[[label]]
  left_out <- if (is.function(label)) dropped else c(label, dropped)
  columns <- lapply(table[setdiff(names(table), left_out)], numbers)
  columns <- as.data.frame(columns[!sapply(columns, is.null)])
  labels <- as.integer(factor(labels))
  known <- !is.na(labels) & labels %in% which(table(labels) >= smallest_class)
  columns <- columns[known, , drop = FALSE]
  labels <- as.integer(factor(labels[known]))
  set.seed(0)
  if (nrow(columns) > largest) {
    part <- sort(sample(nrow(columns), largest))
    columns <- columns[part, , drop = FALSE]
    labels <- labels[part]
    frequent <- labels %in% which(table(labels) >= smallest_class)
    columns <- columns[frequent, , drop = FALSE]
    labels <- as.integer(factor(labels[frequent]))
  }
  write.csv(cbind(columns, class = labels), file.path(folder, paste0(tolower(file), ".csv")), row.names = FALSE, na = "")
  cat(sprintf("%-20s %5d samples %4d features %2d classes\n", file, nrow(columns), ncol(columns), max(labels)))
}

export("MASS", "biopsy", "class", "ID")
export("mlbench", "Glass", "Type")
export("mlbench", "HouseVotes84", "Class", file = "votes")
export("mlbench", "Ionosphere", "Class")
export("mlbench", "LetterRecognition", "lettr", file = "letter")
export("mlbench", "Satellite", "classes")
export("mlbench", "Shuttle", "Class")
export("mlbench", "Sonar", "Class")
export("mlbench", "Vehicle", "Class")
export("mlbench", "Vowel", "Class", "V1")
export("mlbench", "Zoo", "type")
export("kernlab", "musk", "Class")
export("kernlab", "spam", "type")
export("MASS", "crabs", function(table) interaction(table$sp, table$sex), c("sp", "sex", "index"))
export("mclust", "banknote", "Status")
export("mclust", "diabetes", "class", file = "glucose")
export("mclust", "thyroid", "Diagnosis")
export("modeldata", "ad_data", "Class", file = "alzheimer")
export("modeldata", "cells", "class", "case")
export("modeldata", "credit_data", "Status", file = "credit")
export("modeldata", "hpc_data", "class", file = "hpc")
export("modeldata", "mlc_churn", "churn", file = "churn")
export("modeldata", "oils", "class")
export("modeldata", "penguins", "species")
export("modeldata", "scat", "Species")
export("modeldata", "two_class_dat", "Class", file = "two_classes")
